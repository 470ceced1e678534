"""One rank's rounds: the order of things within a step.

The same on every engine: each brings only its memory, its log and its way to wait. Every decision is the ledger's.
`replicas.ReplicaEngine` adds what real weights need.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from outpace.errors import OutpaceError, TrainingOver
from outpace.interface import Ticket, Work
from outpace.protocol.events import Arrive, Event, Finish, Join, Tell
from outpace.protocol.ledger import Ledger
from outpace.protocol.outcome import Outcome, OutcomeKind
from outpace.protocol.rules import Rules


def why_over(rank: int) -> str:
    """For a rank that comes too late."""
    return (
        f"[rank {rank}] all ranks have finished this training, so that this one, which was started again, has nobody "
        "to train with. Nothing is lost: what it had contributed is in the weights of the others"
    )


class RoundEngine(ABC):
    """What strategies call, in terms of what an engine brings."""

    def __init__(self, rank: int, rules: Rules) -> None:
        self.rank, self.world, self.rules = rank, rules.world, rules
        self.incarnation = 0
        self.came_late = False  #: it joined a training that had begun: it was started again
        self.has_left = False  #: it said that no more data comes
        self.steps = 0  #: local steps of the inner optimizer
        self.memory: dict[str, Any] = {}  #: what the strategy remembers on this rank
        self._steps = 0  # contributions
        self.began_s = 0.0  #: when this rank began to compute what it contributes next, on its own clock
        self._pieces_at, self._pieces = -1, 0  # a version, and how many pieces were given at it

    # -- what an engine brings -------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def ledger(self) -> Ledger:
        """What this rank knows of all rounds."""

    @property
    @abstractmethod
    def version(self) -> int:
        """Rounds this rank has applied."""

    @property
    @abstractmethod
    def waited_s(self) -> float:
        """Seconds this rank has waited for others."""

    @abstractmethod
    def _look(self) -> None:
        """Takes in what is new in the log."""

    @abstractmethod
    def _append(self, event: Event) -> Outcome:
        """Appends, and returns what became of it."""

    @abstractmethod
    async def _until(self, predicate: Callable[[], bool], purpose: str) -> None:
        """Waits until the log makes it true, moving the run along where that needs somebody."""

    @abstractmethod
    async def _deposit(self, row: int, work: Work, onto: int | None) -> None:
        """Writes this rank's gradients into its row, added to what lies in the other one if that is given."""

    @abstractmethod
    def now_s(self) -> float:
        """Seconds on this rank's clock."""

    @abstractmethod
    async def compute(self, parts: int = 1) -> None:
        """Lets the time of computing pass, or one of so many parts of it, where time is simulated."""

    @abstractmethod
    async def _share_beginning(self) -> None:
        """Begins from the same weights as all others."""

    @abstractmethod
    async def _apply_until(self, version: int) -> None:
        """Applies all rounds below this number. They are complete."""

    # -- beginning and end -----------------------------------------------------------------------------------------

    async def join(self) -> None:
        """Joins, waits until every rank of the world has joined once, and begins from the same weights as all."""
        self._look()
        self.came_late = self.ledger.started
        known = self.ledger.members.by_rank.get(self.rank)
        self.incarnation = 1 if known is None else known.incarnation + 1
        self._append(Join(self.rank, self.incarnation))
        if self.ledger.over:
            raise TrainingOver(why_over(self.rank))
        await self._until(lambda: self.ledger.started, "for every rank to join")
        await self._share_beginning()
        self.steps = max(self.steps, self.ledger.published.shelves[self.rank].first)

    def leave(self, for_good: bool = False) -> None:
        """Says once that no more data comes, without waiting for anybody; `for_good`, that this process ends, too."""
        if not self.has_left or for_good:
            self._append(Finish(self.rank, self.incarnation, for_good))
            self.has_left = True  # only now: interrupted before, it has to be said again, which does no harm

    # -- what strategies call --------------------------------------------------------------------------------------

    async def begin(self, work: Work, is_part: bool = False, alone: bool = False) -> Ticket:
        """Writes this rank's row and appends its arrival. Waits for nobody."""
        self._look()
        version = self.version
        work = work._replace(step=self._steps + 1)
        row = await self._free_row()
        earlier = None if alone else self.ledger.open.part_of(self.rank, self.incarnation)
        pieces = 1 + (self._pieces if version == self._pieces_at and not alone else 0)
        samples, planned = work.samples, work.planned
        if earlier is not None:
            await self._deposit(row, work, earlier.row)
            samples, planned = earlier.samples + samples, max(earlier.planned, planned)
        elif pieces == 1:
            await self._deposit(row, work, None)
        ticket = self._arrive(row, version, samples, planned, pieces, is_part)
        if ticket.taken and is_part:
            self._pieces_at, self._pieces = version, pieces
        return ticket

    def _arrive(
        self, row: int, version: int, samples: float, planned: float = 1.0, pieces: int = 1, is_part: bool = False
    ) -> Ticket:
        self._steps += 1
        outcome = self._append(
            Arrive(self.rank, self.incarnation, self._steps, version, row, samples, planned, pieces, is_part)
        )
        if outcome.kind is OutcomeKind.IGNORED:
            raise OutpaceError(
                f"[rank {self.rank} - round {version}] this contribution was not taken in ({outcome.reason}): this "
                "rank was replaced, or an earlier synchronize() or finish() was interrupted. Make a new "
                "DistributedOptimizer"
            )
        is_dropped = outcome.kind is OutcomeKind.DROPPED  # recorded as such: nobody need compute it again
        is_too_late = outcome.kind is OutcomeKind.TOO_LATE
        is_kept = (is_dropped or is_too_late) and self._keeps(self._steps)
        taken = is_kept or not is_too_late
        entered = self.ledger.members.by_rank[self.rank].last_round if outcome.round < 0 else outcome.round
        waits = taken and not is_dropped and not is_part and self.rules.counts(entered - version)
        return Ticket(self._steps, entered, waits, outcome.reason, taken)

    def begin_computing(self) -> None:
        """A step begins here: for strategies that look at the clock."""
        self.began_s = self.now_s()

    def look(self) -> None:
        """Takes in what the others have done meanwhile."""
        self._look()

    def tell(self, step: int, index: int, value: float) -> None:
        """Tells all ranks a number."""
        self._append(Tell(self.rank, self.incarnation, step, index, value))

    async def help(self) -> None:
        """Does what there is to be done for a sealed round. Where nobody else need do it, nothing."""
        return

    async def result(self, ticket: Ticket) -> None:
        """Waits until the ticket's round is complete, if it is one that its rank waits for."""
        if ticket.waits:
            await self._until_complete(ticket.round + 1, f"for the quorum of round {ticket.round}")

    async def catch_up(self) -> None:
        """Applies every round known to be sealed. One that is still being reduced is waited for."""
        last = self.ledger.round
        await self._until_complete(last, "for a result to be reduced")
        await self._apply_until(last)

    def _keeps(self, step: int) -> bool:
        """Whether this rank keeps a contribution that was not taken in, to go with a later one."""
        return False

    # -- details ---------------------------------------------------------------------------------------------------

    async def _until_complete(self, version: int, purpose: str) -> None:
        """Waits until all rounds below this number are complete."""
        if self.ledger.complete < version:
            await self._until(lambda: self.ledger.complete >= version, purpose)

    async def _free_row(self) -> int:
        """A row to write into. Both can be taken only for a moment, after this rank was restarted."""
        row = self.ledger.free_row(self.rank)
        while row is None:
            await self._until(lambda: self.ledger.free_row(self.rank) is not None, "for a row to become free")
            row = self.ledger.free_row(self.rank)
        return row
