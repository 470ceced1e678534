"""Systems that are broken on purpose, each in one place, and the checker that must catch it.

What the checkers are worth is shown here: a mutant that is not caught is a hole in the fuzz.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.fuzz import checkers
from tests.fuzz.checkers import Checker
from tests.fuzz.mutants import engines, ledgers, memories
from tests.fuzz.system import System


class Mutant(NamedTuple):
    """A broken system, and who must notice."""

    system: System
    caught_by: type[Checker]

    def __str__(self) -> str:
        part = next(part for part, sound in zip(self.system, System(), strict=True) if part is not sound)
        return " ".join((part.__doc__ or "").split())


MUTANTS: dict[str, Mutant] = {
    "carried-twice": Mutant(System(ledger=ledgers.CarriedTwice), checkers.ExactlyOnce),
    "carried-lost": Mutant(System(ledger=ledgers.CarriedLost), checkers.ExactlyOnce),
    "set-not-frozen": Mutant(System(ledger=ledgers.SetNotFrozen), checkers.FrozenSet),
    "arrival-order": Mutant(System(ledger=ledgers.ArrivalOrder), checkers.SummationOrder),
    "quorum-off-by-one": Mutant(System(ledger=ledgers.QuorumOffByOne), checkers.Quorum),
    "staleness-off-by-one": Mutant(System(ledger=ledgers.StalenessOffByOne), checkers.Staleness),
    "row-freed-early": Mutant(System(ledger=ledgers.RowFreedEarly), checkers.RowsAndSlots),
    "slot-reused": Mutant(System(ledger=ledgers.SlotReused), checkers.RowsAndSlots),
    "freed-early": Mutant(System(ledger=ledgers.FreedEarly), checkers.Ends),
    "spent-early": Mutant(System(ledger=ledgers.SpentEarly), checkers.Ends),
    "base-overwritten": Mutant(System(ledger=ledgers.BaseOverwritten), checkers.Agreement),
    "base-lost": Mutant(System(replay=engines.BaseLost), checkers.Agreement),
    "hyper-goes-back": Mutant(System(ledger=ledgers.HyperGoesBack), checkers.HyperParameters),
    "dead-counted": Mutant(System(ledger=ledgers.DeadCounted), checkers.Membership),
    "never-below-quorum": Mutant(System(ledger=ledgers.NeverBelowQuorum), checkers.Membership),
    "wrong-divisor": Mutant(System(ledger=ledgers.WrongDivisor), checkers.Conservation),
    "wrong-snapshot": Mutant(System(ledger=ledgers.WrongSnapshot), checkers.Agreement),
    "old-record-heard": Mutant(System(ledger=ledgers.OldRecordHeard), checkers.OldRecords),
    "nobody-refused": Mutant(System(tensors=memories.NobodyRefused), checkers.Containment),
    "all-present": Mutant(System(tensors=memories.AllPresent), checkers.PresentMask),
    "wrong-clip": Mutant(System(tensors=memories.WrongClip), checkers.Clipping),
    "clip-forgotten": Mutant(System(tensors=memories.ClipForgotten), checkers.PlainTraining),
    "late-waits": Mutant(System(engine=engines.LateWaits), checkers.WaitBound),
    "newest-only": Mutant(System(replay=engines.NewestOnly), checkers.VersionOrder),
    "nothing-for-late-comers": Mutant(System(replay=engines.NothingForLateComers), checkers.Ends),
    "buffers-apart": Mutant(System(engine=engines.BuffersApart), checkers.Meetings),
    "hand-lost": Mutant(System(ledger=ledgers.HandLost), checkers.DrawnOnce),
    "drawn-twice": Mutant(System(ledger=ledgers.DrawnTwice), checkers.DrawnOnce),
    "prefetched-counts": Mutant(System(engine=engines.PrefetchedCounts), checkers.DrawnOnce),
    "waits-too-long": Mutant(System(engine=engines.WaitsTooLong), checkers.Ends),
}
