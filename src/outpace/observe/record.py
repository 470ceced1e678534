"""What is recorded of a training loop: of an ordinary one by `outpace.record`, of its own by a DistributedOptimizer.

Owns the hooks that see an ordinary loop's steps, and changes nothing in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import starmap
from typing import Any, Protocol

import torch
from torch.optim import Optimizer

from outpace.errors import OutpaceError
from outpace.interface import Engine, Ticket
from outpace.job.environment import whereami
from outpace.observe import collectives
from outpace.observe.recorder import LogDir, Recorder, check
from outpace.observe.schema import (
    Elsewhere,
    Header,
    Pausing,
    Synchronized,
    loop_step,
    strategy_step,
    tally,
    traced_round,
)
from outpace.observe.tensorboard import is_installed, open_board
from outpace.protocol.round import Round


def record(optimizer: Optimizer, log_dir: LogDir, *, payload_bytes: int | None = None) -> Recording:
    """Records every step of a loop with torch's DDP, or of any other, to `log_dir/rank-00003.jsonl`.

        outpace.record(optimizer, "runs/x")

    One line, before or after the model is wrapped. For each step it records when this rank's own gradients were ready,
    how long it then waited for the others (under DDP, the rest of `backward`, and what the loop does before it steps)
    and how long `optimizer.step()` took. `outpace trace runs/x` shows the result.

    `recording.loss(loss)`, on what this returns, also records the loss of a step. If `tensorboard` is installed, rank 0
    writes scalars for it to the same directory.

    A new recording overwrites its file. Never blocks or disturbs training, whatever the disk does; raises
    `OutpaceError` here if nothing can be written to `log_dir`. Ends with `close()`, at the end of a `with` block, or
    with the process. `payload_bytes` is what a rank sends to the others, if that is not its trained parameters.

    Times are those of the Python thread. On a GPU they mean little unless the loop waits for it at each step, for
    instance with `loss.item()`. With a model that has buffers (BatchNorm), DDP also waits for rank 0 in `forward`;
    that is taken for computing and hides who is slow, unless DDP is made with `forward_sync_buffers=False`
    (`broadcast_buffers=False` in older torch).
    """
    return Recording(optimizer, log_dir, payload_bytes)


class Recording:
    """A recording that goes on until it is closed."""

    def __init__(
        self, optimizer: Optimizer, log_dir: LogDir, payload_bytes: int | None = None, strategy: str = "ddp"
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise OutpaceError(f"record() takes a torch.optim.Optimizer, not a {type(optimizer).__name__}")
        if getattr(optimizer, "records_itself", False):
            words = "make it with DistributedOptimizer(..., log_dir=...) instead"
            raise OutpaceError(f"a DistributedOptimizer records itself: {words}")
        parameters = trained(optimizer)
        size = sum(p.numel() * p.element_size() for p in parameters) if payload_bytes is None else payload_bytes
        place = whereami()
        header = Header.here(place.rank, place.world, strategy, size)
        check(log_dir, place.rank)
        self._recorder = Recorder(log_dir, header, board=open_board(log_dir, header))
        self._steps = self._pauses = 0
        self._loss: float | None = None  # of the step that is being computed, as the samples
        self._samples: float | None = None
        self._begin = self._ready = self._called = time.monotonic_ns()
        self._hooks: list[Any] = [p.register_post_accumulate_grad_hook(self._gradient) for p in parameters]  # type: ignore[no-untyped-call]
        self._hooks.append(optimizer.register_step_pre_hook(self._step_begins))
        self._hooks.append(optimizer.register_step_post_hook(self._step_ends))

    def loss(self, value: float | torch.Tensor, samples: float | None = None) -> None:
        """Notes the loss of this step, and the size of its mini-batch: call it any time before `optimizer.step()`.

        A tensor on a GPU is waited for. Once the recording has ended, nothing is looked at.
        """
        if not self._recorder.is_open:
            return
        try:
            self._loss = float(value.detach() if isinstance(value, torch.Tensor) else value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise OutpaceError(f"loss() takes one number, or a tensor of one element: {error}") from error
        self._samples = samples

    @contextmanager
    def pause(self) -> Iterator[None]:
        """A context in which the time is neither computing nor waiting in a step: the ranks meet in another way."""
        began = time.monotonic_ns()
        self._recorder.add((Pausing, "synchronize", began))
        try:
            yield
        finally:
            self._pauses += 1
            self._begin = time.monotonic_ns()
            self._recorder.add((Synchronized, self._pauses, began, self._begin))

    def close(self) -> None:
        """Ends the recording and takes the hooks away. Waits until all is written, at most two seconds."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._recorder.close()

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _gradient(self, _: torch.Tensor) -> None:
        """The last of these before the step is when all gradients are there. DDP does its waiting after it."""
        self._ready = time.monotonic_ns()

    def _step_begins(self, *_: object) -> None:
        self._called = time.monotonic_ns()

    def _step_ends(self, *_: object) -> None:
        end, begin, called = time.monotonic_ns(), self._begin, self._called
        ready = self._ready if begin <= self._ready <= called else called  # a loop may set gradients by itself
        self._steps += 1
        self._begin = end
        waited_s, apply_s = (called - ready) / 1e9, (end - called) / 1e9
        times = (begin, ready, end, waited_s, apply_s)
        self._recorder.add_and_show((loop_step, self._steps, *times, self._loss, self._samples))
        self._loss = self._samples = None


def trained(optimizer: Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]


RoundHook = Callable[[Round], None]


class Recorded(Engine, Protocol):
    @property
    def incarnation(self) -> int: ...

    @property
    def waited_s(self) -> float: ...


class RunTrace:
    """What a DistributedOptimizer records of itself. Does nothing without a `log_dir`."""

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
