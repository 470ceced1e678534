"""G6, G8: when faults cease, every living rank ends, all with equal weights, state and version; or with `BelowQuorum`,
when and only when fewer than `min_ranks` are left. One that had finished and wakes up when all others are gone has
nobody to wait for, and ends as usual."""

from __future__ import annotations

from collections.abc import Sequence

from tests.fuzz.checkers.base import Checker
from tests.fuzz.lives import BELOW_QUORUM, FINISHED, RUNNING, Life
from tests.fuzz.models import fingerprint


class Ends(Checker):
    def ended(self, life: Life) -> None:
        few = self.scene.reference.below_quorum
        if life.fate == BELOW_QUORUM:
            assert few, f"{life} ended with BelowQuorum, and enough ranks are left"

    def end(self, lives: Sequence[Life]) -> None:
        waiting = [str(life) for life in lives if life.fate == RUNNING]
        assert not waiting, f"{', '.join(waiting)} did not come to an end within the bound"
        fates = {life.fate for life in lives} & {FINISHED, BELOW_QUORUM}
        few = self.scene.reference.below_quorum
        assert len(fates) < 2 or few, "some ranks finished, and some ended with BelowQuorum"
        finished = [life for life in lives if life.fate == FINISHED]
        versions = {life.replica.version for life in finished}
        assert versions <= {self.ledger.round}, f"ranks finished at versions {versions} of {self.ledger.round}"
        assert len({fingerprint(life.replica) for life in finished}) < 2, "ranks finished with different weights"
