"""Rules 5 and 6, G4: a round is sealed when its quorum is met and its grace over, neither before nor after.

Counted anew by the reference model: on time among the members, or nobody else could come. Majority exactly.
"""

from __future__ import annotations

from outpace.protocol.events import Event, Outcome
from outpace.protocol.round import Round
from tests.fuzz.checkers.base import Checker
from tests.support.protocol.checkers import check_exact_majority


class Quorum(Checker):
    def event(self, event: Event, outcome: Outcome) -> None:
        ledger, reference = self.ledger, self.scene.reference
        here = f"{len(reference.on_time())} on time of {len(reference.unfinished())} members"
        which = f"quorum {self.scene.rules.quorum!r} of round {reference.open}"
        assert ledger.round <= reference.open, f"sealed before the {which} was met: {here}"
        assert ledger.round >= reference.open, f"not sealed though the quorum of round {ledger.round} was met"
        met, grace = (ledger.met_ns, ledger.grace_ns), (reference.met_ns, reference.grace_ns)
        assert met == grace, f"{which}: met and grace are {met}, by the rules {grace}"
        assert ledger.awaited() == reference.can_still_contribute(), f"{which}: awaits {ledger.awaited()}"
        due = ledger.deadline_ns
        assert due is None or event.time_ns <= due, f"{which}: not sealed though its grace ended at {due} ns"

    def sealed(self, record: Round) -> None:
        if self.scene.rules.quorum == "majority" and self.scene.rules.grace == 0:
            check_exact_majority(self.ledger, record)
