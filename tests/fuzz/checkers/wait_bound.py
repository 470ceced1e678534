"""G4: a rank's wait ends when its round is complete and it could know; a late one never waits for a quorum.

A round that is sealed takes no longer than its reduction. Pauses of the rank itself are not the others' doing.
"""

from __future__ import annotations

from outpace.protocol.events import Arrive, Claim, Event, Outcome
from outpace.protocol.round import Round
from tests.fuzz.checkers.base import Checker
from tests.fuzz.lives import Life
from tests.fuzz.watch import Scene


class WaitBound(Checker):
    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._notice_ns = round(scene.world.network.notice_s(scene.rules.world) * 1e9)
        self._complete_ns: list[int] = [0]  # when so many rounds were complete
        self._wrote_ns: dict[int, int] = {}  # when a rank last began to write a snapshot
        self._may_wait: dict[int, bool] = {}  # whether a rank's last contribution is one that waits for its quorum
        self._attempt: tuple[tuple[int, int], int] = ((-1, 0), 0)  # of which round, and since when

    def event(self, event: Event, outcome: Outcome) -> None:
        if isinstance(event, Claim):
            self._wrote_ns[event.rank] = event.time_ns
        if isinstance(event, Arrive) and not outcome.is_ignored:
            given = self.scene.reference.given[-1]
            self._may_wait[event.rank] = given.counts and given.round is not None
        while len(self._complete_ns) <= self.ledger.complete:
            self._complete_ns.append(event.time_ns)
        sealed = self.ledger.reducing
        if sealed is not None and self._attempt[0] != (sealed.number, sealed.attempt):
            self._attempt = (sealed.number, sealed.attempt), event.time_ns

    def completed(self, record: Round) -> None:
        world, ranks = self.scene.world, range(self.scene.rules.world)
        longest = world.network.reduce_ns(self.scene.rules.world, [*ranks, *ranks], world.payload_bytes)
        took = self.scene.now_ns - self._attempt[1]
        assert took <= longest, f"round {record.number} took {took} ns to reduce, where {longest} are enough"

    def waited(self, life: Life, version: int, open_round: int, began_ns: int) -> None:
        if not self._may_wait.get(life.rank, False):
            assert version <= open_round, f"{life} came late and waited for the quorum of round {version - 1}"
        slack = self._notice_ns
        if self._wrote_ns.get(life.rank, -1) >= began_ns:
            slack += self.scene.apply_ns  # whoever waits writes a snapshot that is overdue
        due = max(began_ns, self._complete_ns[version] + slack, life.stopped_until_ns + slack)
        over = self.scene.now_ns - due
        assert over <= 0, f"{life} waited for round {version - 1} until {over} ns after it could go on"
