"""Ledgers that are broken in one place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

from outpace.protocol.events import Arrive, Dead, Event, Join, Outcome, OutcomeKind, Snapshot
from outpace.protocol.ledger import Ledger
from outpace.protocol.ledger_view import Snapshots
from outpace.protocol.members import OpenRound
from outpace.protocol.pool import Pool, Share
from outpace.protocol.round import Contribution
from outpace.protocol.rules import Rules, needed


class _WithOpenRound(Ledger):
    """A ledger whose open round is broken."""

    open_round: ClassVar[type[OpenRound]]

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules)
        self.open = self.open_round()


class _KeepsCarried(OpenRound):
    kept: frozenset[Contribution] = frozenset()

    def close(self) -> tuple[Contribution, ...]:
        again = [c for c in self.carried if c not in self.kept]
        frozen = super().close()
        self.carried, self.kept = again, self.kept.union(again)
        return frozen


class _LosesCarried(OpenRound):
    def close(self) -> tuple[Contribution, ...]:
        lost, self.carried = self.carried, []
        frozen = super().close()
        self.free(lost)
        return frozen


class _KeepsOrder(OpenRound):
    def close(self) -> tuple[Contribution, ...]:
        as_they_came = (*self.on_time, *self.carried)
        super().close()
        return as_they_came


class CarriedTwice(_WithOpenRound):
    """A late gradient goes with two rounds."""

    open_round = _KeepsCarried


class CarriedLost(_WithOpenRound):
    """A late gradient goes with no round."""

    open_round = _LosesCarried


class ArrivalOrder(_WithOpenRound):
    """A round is summed in the order of arrival."""

    open_round = _KeepsOrder


class SetNotFrozen(Ledger):
    """What arrives between the seal and the end of the reduction still enters."""

    def _place(self, contribution: Contribution, lag: int, is_part: bool) -> Outcome:
        sealed = self.reducing
        if sealed is None or not lag or self.rules.late == "drop":
            return super()._place(contribution, lag, is_part)
        self.open.rows.add((contribution.rank, contribution.row))
        self.reducing = sealed._replace(contributions=tuple(sorted((*sealed.contributions, contribution))))
        words = f"late by {lag} rounds: entered round {sealed.number}, which was sealed"
        return Outcome(OutcomeKind.CARRIED, words, sealed.number)


class QuorumOffByOne(Ledger):
    """One fewer than the quorum is enough."""

    def _count_needed(self) -> None:
        super()._count_needed()
        self._needed = max(1, self._needed - 1) if self.rules.is_count else 0


class StalenessOffByOne(Ledger):
    """A contribution one round too old is taken in."""

    def _place(self, contribution: Contribution, lag: int, is_part: bool) -> Outcome:
        rules = self.rules
        self.rules = replace(rules, max_staleness=rules.max_staleness + 1)
        outcome = super()._place(contribution, lag, is_part)
        self.rules = rules
        return outcome


class RowFreedEarly(Ledger):
    """A row is given back when its round is sealed, not when it is complete."""

    def _close_round(self) -> None:
        super()._close_round()
        if self.reducing is not None:
            self.open.free(self.reducing.contributions)


class SlotReused(Ledger):
    """A result is written over the one before it, which is still kept."""

    def _free_slot(self) -> int:
        return next((r.slot for r in self.completed.values()), super()._free_slot())


class FreedEarly(Ledger):
    """A result is given up when the first rank has applied it, not the last."""

    def apply(self, event: Event) -> Outcome:
        if isinstance(event, Arrive):
            for rank, version in self.results.applied.items():
                self.results.has_applied(rank, max(version, event.version))
        return super().apply(event)


class SpentEarly(Ledger):
    """A snapshot is emptied while somebody may still begin from it."""

    def is_spent(self) -> bool:
        latest = self.snapshots.latest
        return latest is not None and latest.buffer >= 0 and latest.version < self.round


class _OverwritesBase(Snapshots):
    def _is_kept(self, buffer: int) -> bool:
        return self.latest is not None and self.latest.buffer == buffer


class BaseOverwritten(Ledger):
    """A snapshot is written over the latest that has what is not trained."""

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules)
        self.snapshots_at = [_OverwritesBase(rules.world)]


class HyperGoesBack(Ledger):
    """The hyper-parameters of a rank that is behind are taken after those of one ahead."""

    def _leader(self, contributions: tuple[Contribution, ...]) -> Contribution | None:
        before, self.hyper_step = self.hyper_step, 0
        leader = super()._leader(contributions)
        self.hyper_step = before
        return leader


class DeadCounted(Ledger):
    """The quorum is still taken of a rank that is dead."""

    def apply(self, event: Event) -> Outcome:
        outcome = super().apply(event)
        if isinstance(event, Dead) and not outcome.is_ignored:
            self.open.unfinished.add(event.rank)
            self._needed = needed(self.rules.quorum, len(self.open.unfinished))
        return outcome


class NeverBelowQuorum(Ledger):
    """Rounds go on with fewer ranks than `min_ranks`."""

    below_quorum = False  # type: ignore[assignment]


class WrongDivisor(Ledger):
    """The divisor counts only those who have data left."""

    def _close_round(self) -> None:
        super()._close_round()
        if self.reducing is not None:
            self.reducing = self.reducing._replace(world=len(self.open.unfinished))


class WrongSnapshot(Ledger):
    """A snapshot is announced as one round newer than it is."""

    def apply(self, event: Event) -> Outcome:
        if isinstance(event, Snapshot) and 0 < event.version < self.complete:
            event = event._replace(version=event.version + 1)
        return super().apply(event)


class OldRecordHeard(Ledger):
    """A life that has joined may join again, and begins anew."""

    def apply(self, event: Event) -> Outcome:
        known = self.members.by_rank.get(event.rank) if isinstance(event, Join) else None
        if isinstance(event, Join) and known is not None and known.incarnation == event.incarnation:
            known.incarnation -= 1
        return super().apply(event)


class _Forgets(Pool):
    def leave(self, rank: int) -> None:
        self.hands.pop(rank, None)


class _HandsOutTwice(Pool):
    def _return(self, shares: Iterable[Share]) -> None:
        shares = list(shares)
        super()._return([*shares, *shares[:1]])


class HandLost(Ledger):
    """What a rank had drawn when it died is drawn by nobody."""

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules)
        self.pool = _Forgets()


class DrawnTwice(Ledger):
    """What is given back is drawn twice."""

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules)
        self.pool = _HandsOutTwice()
