"""Reading the log and waiting: one rank's ledger, kept up to date.

Owns the ledger of this rank, the appends that change it, the bell and the probing of lives. Decides nothing: what an
event means is the ledger's business.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import get_ident

from outpace.engines.arena.bell import SLICE_S, Bell
from outpace.engines.arena.faults import Faults
from outpace.engines.arena.life import Life
from outpace.engines.arena.log import READ_RECORDS, RECORD_BYTES, Log, LogCut
from outpace.engines.arena.snapshot import SnapshotStore
from outpace.errors import BelowQuorum, OutpaceError, TimedOut
from outpace.job.machine import cores
from outpace.protocol.events import Dead, Event, Seal
from outpace.protocol.ledger import Ledger
from outpace.protocol.outcome import Outcome, OutcomeKind
from outpace.protocol.rules import Rules

PROBE_S = 0.1
SPIN_S = 0.0002  #: a wait begins with looking out for so long, where each rank has a core: waking up takes as long
ASLEEP_S = 1.0  #: who did not even look for so long was stopped; several times what the longest rest takes
LONG_WAIT_S, LONG_SLICE_S = 0.5, 0.05  #: after so long a wait, a lost ring may cost this much: a tenth of it
SEAL_TURN_S, SEAL_TURNS = 0.002, 4  #: if the first to arrive does not seal, the next one does, and so on
_PASSED_OVER = Outcome(
    OutcomeKind.UNKNOWN, "unknown: this rank was away, and what it gave away last was folded by others"
)


@dataclass(slots=True)
class Fold:
    """A ledger, and how much of the log is in it. Both change together, or are given up together.

    A signal handler may raise between any two instructions. So whoever folds says so first: a fold that its own thread
    finds under way was torn by an exception, and is made anew. Nothing is caught, so nothing can come before the catch.
    """

    ledger: Ledger
    position: int = 0  #: bytes of the log
    by: int = 0  #: the thread that is folding into it, 0 while it is whole


class Watch:
    """What this rank knows, and how it waits to know more."""

    def __init__(
        self,
        rank: int,
        rules: Rules,
        log: Log,
        snapshots: SnapshotStore,
        bell: Bell,
        life: Life,
        faults: Faults,
        timeout_s: float,
        host: int = 0,
    ) -> None:
        self.rank = rank
        self._fold = Fold(Ledger(rules, host))
        self.waited_s = 0.0
        self.helpers = 0  #: how many waiters a sealed round is worth waking for
        self.log = log
        self._snapshots = snapshots
        self._bell = bell
        self._life = life
        self._faults = faults
        self._timeout_s = timeout_s
        self._spin_s = SPIN_S if rules.world <= cores() else 0.0  # else it would take a core from somebody who works
        self._appended: dict[int, tuple[Event, Outcome]] = {}  # by its time, what is being appended here
        self._probed = 0.0
        self._shown = 0

    @property
    def ledger(self) -> Ledger:
        """What the log made of all events up to `position`. Never half of one of them."""
        by = self._fold.by
        if by and by == get_ident():
            self.refresh()
        return self._fold.ledger

    @property
    def position(self) -> int:
        """How far this rank has read the log, in bytes."""
        return self._fold.position

    def refresh(self) -> None:
        """Folds what is new in the log. The bell is read first, so that a ring after this look is not missed.

        It ends with what it folded itself, also if a signal handler looked at the log in the middle of it.
        """
        self._shown = self._bell.value()
        fold = self._fold
        if fold.by:
            fold = Fold(Ledger(fold.ledger.rules, fold.ledger.host))
        fold.by = get_ident()
        while True:
            try:
                events = self.log.read(fold.position)
            except LogCut:
                fold = self._fold_of_snapshot()
                continue
            apply, appended = fold.ledger.apply, self._appended
            for event in events:
                outcome = apply(event)
                fold.position += RECORD_BYTES
                time_ns = event[-1]
                if time_ns in appended and _is_same(appended[time_ns][0], event):
                    appended[time_ns] = (event, outcome)
            if len(events) < READ_RECORDS:
                break
        fold.by = 0
        self._fold = fold

    def _fold_of_snapshot(self) -> Fold:
        """For a rank that was away so long that its place in the log is gone, or whose fold was torn after it was."""
        before, began = self._fold.ledger, time.monotonic()
        while True:
            buffer = self._snapshots.hinted()
            plain = None if buffer is None else self._snapshots.read_plain(buffer)
            if plain is not None:
                return Fold(Ledger.from_state(before.rules, plain["ledger"], before.host), plain["position"])
            if time.monotonic() - began > self._timeout_s:
                raise TimedOut(
                    f"[rank {self.rank}] what this rank missed is no longer in the log, and no snapshot to go on from "
                    f"was written within {self._timeout_s:.0f} s. See whether the other ranks of its host are stopped, "
                    "or raise timeout_s"
                )
            time.sleep(SLICE_S)  # it is being overwritten, and a newer one is about to be hinted at

    def append(self, event: Event) -> Outcome:
        """Appends in this rank's name, folds, and wakes the others if there is something to wake up for.

        Returns what became of this very event, unknown only if a snapshot was adopted that is from after it.
        """
        ledger = self.ledger
        news, sealed, round_ = ledger.news, ledger.reducing, ledger.round
        self._faults.at("before-append", round_)
        event = event._replace(time_ns=self.log.now_ns())
        self._appended[event.time_ns] = (event, _PASSED_OVER)  # before it is there: a signal handler may fold it
        try:
            self.log.append(event)
            self._faults.at("after-append", round_)
            self._until_folded()
            _, outcome = self._appended[event.time_ns]
        finally:
            self._appended.pop(event.time_ns, None)
        ledger = self.ledger
        if ledger.news != news:
            self._faults.at("before-wake", round_)
            self._bell.ring()
        elif self.helpers and ledger.reducing is not None and ledger.reducing is not sealed:
            self._faults.at("before-wake", round_)
            self._bell.ring(self.helpers)
        return outcome

    def _until_folded(self) -> None:
        """Takes in what was appended just now."""
        self.refresh()

    def close(self) -> None:
        """Reads no more. What was read can still be asked for."""
        with contextlib.suppress(OutpaceError):  # a damaged log: then that is why it closes
            if self._fold.by:
                self.refresh()
        self.log.close()

    def _check(self) -> None:
        """Raises if no wait can come to a good end."""
        if self.ledger.below_quorum:
            where = f"[rank {self.rank} - round {self.ledger.round}]"
            raise BelowQuorum(f"{where} {self.ledger.why_below_quorum()}")

    def wait(self, until: Callable[[], bool], meanwhile: Callable[[], bool], purpose: str) -> None:
        """Waits without CPU until the log makes `until` true. `meanwhile` may help; it returns True if it did.

        Begins with what the last look at the log showed: whoever comes here has just appended or looked.
        """
        began = looked = time.monotonic()
        asleep_s = 0.0
        try:
            while not until():
                self._check()
                seen = self.position
                if meanwhile() or self.position != seen:
                    continue  # helping looks at the log, too, and may have seen what is waited for
                now = time.monotonic()
                if now - looked > ASLEEP_S:  # it is this rank that stood still, and nobody it waits for
                    asleep_s += now - looked
                looked = now
                if now - self._probed > PROBE_S:
                    self._probed = now
                    if self._report_deaths():
                        continue
                if now - began - asleep_s > self._timeout_s:
                    raise TimedOut(self._timed_out(purpose))
                self._rest(now - began)
                self.refresh()
        finally:
            self.waited_s += time.monotonic() - began

    def _rest(self, waited_s: float) -> None:
        """Sleeps until there is news, or something to do by the clock. As little as possible runs between slices."""
        if waited_s < self._spin_s and self._bell.spin(self._shown, self._spin_s):
            return
        left = self._grace_left_s()
        if left is not None or self.ledger.reducing is not None:
            self._bell.wait(self._shown, SLICE_S if left is None else min(SLICE_S, max(1e-5, left)))
            return
        slice_s = SLICE_S if waited_s < LONG_WAIT_S else LONG_SLICE_S
        for _ in range(round(PROBE_S / slice_s)):
            self._bell.wait(self._shown, slice_s)
            if self._bell.value() != self._shown or self.log.has_news(self.position):
                return

    def seal_if_due(self) -> bool:
        """Ends the grace of the open round when it is over."""
        left = self._grace_left_s()
        if left is None or left > 0:
            return False
        self.append(Seal(self.ledger.sealable))
        return True

    def living(self) -> list[int]:
        """Ranks that have joined and are not known to be dead."""
        return [m.rank for m in self.ledger.members.by_rank.values() if m.alive]

    def _grace_left_s(self) -> float | None:
        """How long this rank still leaves the open round to late-comers. The first to arrive seals first."""
        deadline = self.ledger.deadline_ns
        if deadline is None:
            return None
        turn = next((i for i, rank in enumerate(self.ledger.sealers()) if rank == self.rank), SEAL_TURNS)
        return (deadline - self.log.now_ns()) / 1e9 + min(turn, SEAL_TURNS) * SEAL_TURN_S

    def _report_deaths(self) -> bool:
        """Of ranks on this host: only here can their lives be seen."""
        here = self.ledger.hosts.of
        gone = [
            m
            for m in self.ledger.members.by_rank.values()
            if m.alive and m.rank != self.rank and here[m.rank] == self.ledger.host and not self._life.lives(m.rank)
        ]
        for member in gone:
            self.append(Dead(member.rank, member.incarnation))
        return bool(gone)

    def _timed_out(self, purpose: str) -> str:
        missing = [r for r in range(self.ledger.rules.world) if r not in self.ledger.members.by_rank]
        awaited = missing if not self.ledger.started else self.ledger.awaited()
        return (
            f"[rank {self.rank} - round {self.ledger.round}] waited {self._timeout_s:.0f} s {purpose}; "
            f"still missing: ranks {awaited}{self._where(awaited)}. Nothing was lost; see whether they hang, or raise "
            "timeout_s"
        )

    def _where(self, ranks: Sequence[int]) -> str:
        """The hosts of these ranks, where there are several."""
        rules = self.ledger.rules
        return f" (on hosts {sorted({rules.hosts[rank] for rank in ranks})})" if rules.hosts else ""


def _is_same(one: Event, other: Event) -> bool:
    """Types are compared as well: named tuples of two kinds may have the same fields."""
    return type(one) is type(other) and one == other
