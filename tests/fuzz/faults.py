"""What goes wrong in one run: pauses, crashes, restarts, bad gradients, old records. Owns when it does.

A fault happens at its time, or lies in wait for a rank from then on, until it comes to a point: into the middle of
depositing, waiting, applying or writing a snapshot.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from outpace.protocol.events import Arrive, Attempt, Claim, Draw, Event, Outcome, Snapshot
from outpace.protocol.round import Round
from tests.fuzz.lives import Life
from tests.fuzz.plan import Fault

if TYPE_CHECKING:
    from tests.fuzz.run import Run

MS = 1_000_000
WAITING_NS = 10 * MS  #: how far into its waiting a rank may be hit


class Faults:
    """All faults of a run. Also watches it, for the points and for records to repeat."""

    def __init__(self, run: Run) -> None:
        self.is_huge = False  #: gradients are now so large that a sum of two overflows
        self._run = run
        self._lying_in_wait: list[Fault] = []
        self._poisoned: set[int] = set()
        self._log: list[Event] = []
        self._ceased = False

    def plan(self) -> int:
        """Puts all faults on the clock, and returns when the last one is over."""
        end = max(self._run.plan.joins_ms)
        for fault in self._run.plan.faults:
            self._run.clock.at(round(fault.at_ms * MS), partial(self._begin, fault))
            end = max(end, fault.at_ms + fault.lasts_ms)
        return round(end * MS)

    def cease(self) -> None:
        """Nothing goes wrong any more, and all stopped ranks go on. Crashed ones may still be restarted."""
        self._ceased, self.is_huge = True, False
        self._lying_in_wait.clear()
        self._poisoned.clear()
        for life in self._run.lives:
            self._go_on(life)

    def takes_poison(self, rank: int) -> bool:
        """Whether this rank's next gradient shall not be finite."""
        is_poisoned = rank in self._poisoned
        self._poisoned.discard(rank)
        return is_poisoned

    # -- points ----------------------------------------------------------------------------------------------------

    def event(self, event: Event, outcome: Outcome) -> None:
        if isinstance(event, (Claim, Draw, Snapshot)):  # these may be said again, and are no old records
            if isinstance(event, Claim):
                self._come_to("writing a snapshot", event.rank, self._run.scene.apply_ns)
            return
        self._log.append(event)
        if isinstance(event, Arrive):
            self._come_to("waiting", event.rank, WAITING_NS)

    def depositing(self, life: Life) -> None:
        self._come_to("depositing", life.rank, self._run.world.arrive_ns)

    def begins_to_apply(self, life: Life, record: Round) -> None:
        self._come_to("applying", life.rank, self._run.scene.apply_ns)

    def _come_to(self, point: str, rank: int, span_ns: int) -> None:
        for fault in [f for f in self._lying_in_wait if (f.point, f.rank) == (point, rank)]:
            self._lying_in_wait.remove(fault)
            self._run.clock.after(int(fault.after * span_ns), partial(self._strike, fault))

    # -- what happens ----------------------------------------------------------------------------------------------

    def _begin(self, fault: Fault) -> None:
        if fault.point and fault.kind in ("pause", "crash"):
            self._lying_in_wait.append(fault)
        else:
            self._strike(fault)

    def _strike(self, fault: Fault) -> None:
        if not self._ceased:
            getattr(self, "_" + fault.kind)(fault)

    def _pause(self, fault: Fault) -> None:
        life = self._run.life(fault.rank)
        if life is not None and not life.task.is_stopped:
            self._say(fault, "pause")
            life.task.stop()
            self._run.clock.after(round(fault.lasts_ms * MS), partial(self._go_on, life))

    def _go_on(self, life: Life) -> None:
        if life.is_living and life.task.is_stopped:
            self._run.watch.tell("fault", life.rank, "goes on")
            life.stopped_until_ns = self._run.clock.now_ns
            life.task.go_on()

    def _crash(self, fault: Fault) -> None:
        life = self._run.life(fault.rank)
        if life is None or not life.engine.incarnation:
            return  # a rank that never joins is awaited by all, and rightly so
        self._say(fault, "crash")
        life.kill()
        if fault.lasts_ms >= 0:
            self._run.clock.after(round(fault.lasts_ms * MS), partial(self._restart, fault.rank))

    def _restart(self, rank: int) -> None:
        if self._run.life(rank) is None:
            self._run.start(rank)

    def _poison(self, fault: Fault) -> None:
        self._poisoned.add(fault.rank)

    def _huge(self, fault: Fault) -> None:
        self.is_huge = True
        lasts_ms = max(fault.lasts_ms, 2 * self._run.plan.scenario.compute_ms)
        self._run.clock.after(round(lasts_ms * MS), self._no_longer_huge)

    def _no_longer_huge(self) -> None:
        self.is_huge = False

    def _echo(self, fault: Fault) -> None:
        """A record of the past is appended again."""
        if self._log:
            self._run.world.append(self._log[-1 - int(fault.after * len(self._log))])

    def _attempt(self, fault: Fault) -> None:
        """The round in reduction is reduced again, into another slot."""
        sealed, ledger = self._run.world.ledger.reducing, self._run.world.ledger
        if sealed is not None:
            slot = ledger.free_slots()[0]
            self._run.world.append(Attempt(sealed.number, sealed.attempt + 1, slot))

    def _say(self, fault: Fault, what: str) -> None:
        self._run.watch.tell("fault", fault.rank, f"{what} {fault.point}".strip())
