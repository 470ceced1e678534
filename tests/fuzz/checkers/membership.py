"""Rules 6 and 12: who lives, synchronises or has finished is what the log says; too few left is seen at once."""

from __future__ import annotations

from outpace.protocol.events import Event, Outcome
from tests.fuzz.checkers.base import Checker


class Membership(Checker):
    def event(self, event: Event, outcome: Outcome) -> None:
        ledger, reference = self.ledger, self.scene.reference
        found = {m.rank: (m.incarnation, m.state, m.alive) for m in ledger.members.by_rank.values()}
        expected = {x.rank: (x.incarnation, x.state, x.alive) for x in reference.lives_now()}
        assert found == expected, f"members are {found}, by the log {expected}"
        unfinished = {x.rank for x in reference.unfinished()}
        assert ledger.open.unfinished == unfinished, f"the quorum is taken of {ledger.open.unfinished}"
        flags = (ledger.started, ledger.ended, ledger.below_quorum)
        due = (reference.started, reference.ended, reference.below_quorum)
        assert flags == due, f"(started, ended, below quorum) is {flags}, by the log {due}"
