"""What a DistributedOptimizer records of itself. Does nothing without a `log_dir`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import starmap
from typing import Protocol

import torch

from outpace.interface import Engine, Ticket
from outpace.observe import collectives
from outpace.observe.recorder import LogDir, Recorder, check
from outpace.observe.schema import Elsewhere, Header, Pausing, Synchronized, strategy_step, tally, traced_round
from outpace.observe.tensorboard import is_installed, open_board
from outpace.protocol.round import Round

RoundHook = Callable[[Round], None]


class Recorded(Engine, Protocol):
    @property
    def incarnation(self) -> int: ...

    @property
    def waited_s(self) -> float: ...


class RunTrace:
    def __init__(self, log_dir: LogDir | None, then: RoundHook | None, rank: int) -> None:
        """Raises `OutpaceError` for an unusable directory, before this rank has met the others."""
        self.on_round = then if log_dir is None else self._round  #: to be called with each round that was applied
        self._log_dir = log_dir
        self._then = then
        self._rank = rank
        self._recorder: Recorder | None = None
        self._begin, self._waited_s, self._version = 0, 0.0, 0  # what the next step is measured from
        self._told: dict[str, tuple[int, float]] = {}  # of collectives that are not outpace's
        if log_dir is not None:
            check(log_dir, self._rank)
            if self._rank == 0:
                is_installed()  # imports it now, while nobody waits for this rank

    @property
    def is_recording(self) -> bool:
        return self._recorder is not None

    def start(self, engine: Recorded, parameters: Sequence[torch.Tensor], strategy: object) -> None:
        self._engine = engine
        if self._log_dir is None:
            return
        size = sum(p.numel() * p.element_size() for p in parameters)
        header = Header.here(engine.rank, engine.world, str(strategy), size, engine.incarnation)
        self._recorder = Recorder(self._log_dir, header, board=open_board(self._log_dir, header))
        collectives.watch()
        self._mark(time.monotonic_ns())

    def step(self, ready_ns: int, ticket: Ticket, samples: float, loss: float | None = None) -> None:
        """A step was called at `ready_ns` and is about to return."""
        if self._recorder is None:
            return
        end, waited_s, version = time.monotonic_ns(), self._engine.waited_s, self._version
        growth_s = waited_s - self._waited_s
        times = (self._begin, ready_ns, end, growth_s)
        self._recorder.add_and_show((strategy_step, ticket, *times, version, samples, loss))
        self._begin, self._waited_s, self._version = end, waited_s, self._engine.version
        self._tell_elsewhere()

    def elsewhere(self) -> tuple[Elsewhere, ...]:
        """Waits in collectives that are not outpace's, the longest first. Known only while recording."""
        return tuple(sorted(starmap(_elsewhere, self._told.items()), key=lambda each: -each.seconds))

    def _tell_elsewhere(self) -> None:
        now = collectives.waited()
        if self._recorder is not None and now != self._told:
            for site, (calls, seconds) in now.items():
                if self._told.get(site) != (calls, seconds):
                    self._recorder.add((Elsewhere, site, calls, round(seconds, 6)))
            self._told = now

    def pausing(self, name: str, began_ns: int) -> None:
        """This rank takes no steps for now, so nobody who follows the run should think it late."""
        if self._recorder is not None:
            self._recorder.add((Pausing, name, began_ns))

    def synchronized(self, began_ns: int) -> None:
        if self._recorder is not None:
            end = time.monotonic_ns()
            self._recorder.add((Synchronized, self._engine.ledger.sync.generation, began_ns, end))
            self._mark(end)

    def close(self, began_ns: int | None = None) -> None:
        """Training has ended; `began_ns` is when `finish()` was called. Waits up to two seconds for the disk."""
        if self._recorder is not None:
            self._tell_elsewhere()
            if self._recorder.is_open:
                collectives.unwatch()
            own = self._engine.ledger.members.tallies.get(self._rank)
            if own is not None:
                self._recorder.add((tally, own.on_time, own.carried, own.dropped, dict(own.staleness)))
            self._recorder.close(began_ns)

    def _mark(self, now_ns: int) -> None:
        self._begin, self._waited_s, self._version = now_ns, self._engine.waited_s, self._engine.version

    def _round(self, record: Round) -> None:
        """All ranks apply every round; its first contributor records it, and rank 0 shows it in TensorBoard."""
        if self._recorder is not None and record.contributions:
            quorum = self._engine.ledger.choice.change_at(record.number)
            applied = (traced_round, record, time.monotonic_ns(), quorum)
            if record.contributions[0].rank == self._rank:
                self._recorder.add(applied)
            if self._recorder.board is not None:
                self._recorder.board.add(applied)
        if self._then is not None:
            self._then(record)


def _elsewhere(site: str, waited: tuple[int, float]) -> Elsewhere:
    return Elsewhere(site, *waited)
