"""One rank's rounds: the order of things within a step.

The same on every engine: each brings only its memory, its log and its way to wait. Every decision is the ledger's.
`replicas.ReplicaEngine` adds what real weights need.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from outpace.engines.base import Ticket, Work
from outpace.errors import OutpaceError
from outpace.protocol.events import Event, Kind
from outpace.protocol.ledger import Ledger
from outpace.protocol.rules import Rules


class RoundEngine(ABC):
    """What strategies call, in terms of what an engine brings."""

    def __init__(self, rank: int, rules: Rules) -> None:
        self.rank, self.world, self.rules = rank, rules.world, rules
        self.incarnation = 0
        self.has_left = False  #: it said that no more data comes
        self._steps = 0

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
    def _append(self, event: Event) -> str:
        """Appends, and returns in words what became of it."""

    @abstractmethod
    async def _until(self, predicate: Callable[[], bool], purpose: str) -> None:
        """Waits until the log makes it true, moving the run along where that needs somebody."""

    @abstractmethod
    async def _deposit(self, row: int, work: Work) -> None:
        """Writes this rank's gradients into its row."""

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
        known = self.ledger.members.by_rank.get(self.rank)
        self.incarnation = 1 if known is None else known.incarnation + 1
        self._say(Kind.JOIN)
        await self._until(lambda: self.ledger.started, "for every rank to join")
        await self._share_beginning()

    def leave(self) -> None:
        """Says once that no more data comes, without waiting for anybody."""
        if not self.has_left:
            self.has_left = True
            self._say(Kind.FINISH)

    # -- what strategies call --------------------------------------------------------------------------------------

    async def begin(self, work: Work) -> Ticket:
        """Writes this rank's row and appends its arrival. Waits for nobody."""
        self._look()
        version = self.version
        row = await self._free_row()
        await self._deposit(row, work)
        return self._arrive(row, version, work.samples)

    def _arrive(self, row: int, version: int, samples: float) -> Ticket:
        self._steps += 1
        reason = self._say(Kind.ARRIVE, self._steps, version, row, samples)
        if reason.startswith("ignored") and "arrived before" not in reason:
            raise OutpaceError(
                f"[rank {self.rank} - round {version}] this contribution was not taken in ({reason}): this rank was "
                "replaced, or an earlier synchronize() or finish() was interrupted. Make a new DistributedOptimizer"
            )
        entered = self.ledger.members.by_rank[self.rank].last_round
        return Ticket(self._steps, entered, self.rules.counts(entered - version), reason)

    async def result(self, ticket: Ticket) -> None:
        """Waits until the ticket's round is complete, if it is one that its rank waits for."""
        if ticket.waits:
            await self._until_complete(ticket.round + 1, f"for the quorum of round {ticket.round}")

    async def catch_up(self) -> None:
        """Applies every round known to be sealed. One that is still being reduced is waited for."""
        last = self.ledger.round
        await self._until_complete(last, "for a result to be reduced")
        await self._apply_until(last)

    # -- details ---------------------------------------------------------------------------------------------------

    async def _until_complete(self, version: int, purpose: str) -> None:
        """Waits until all rounds below this number are complete."""
        if self.ledger.complete < version:
            await self._until(lambda: self.ledger.complete >= version, purpose)

    def _say(self, kind: Kind, step: int = 0, round_: int = 0, place: int = 0, samples: float = 0.0) -> str:
        """Appends an event about this rank itself."""
        return self._append(Event(kind, self.rank, self.incarnation, step, round_, place, 0, samples))

    async def _free_row(self) -> int:
        """A row to write into. Both can be taken only for a moment, after this rank was restarted."""
        row = self.ledger.free_row(self.rank)
        while row is None:
            await self._until(lambda: self.ledger.free_row(self.rank) is not None, "for a row to become free")
            row = self.ledger.free_row(self.rank)
        return row
