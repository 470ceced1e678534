"""Statistics of a run, read off a rank's ledger. Owns their shape; measures nothing itself."""

from __future__ import annotations

from dataclasses import dataclass

from outpace.observe.figures import applied_shares, late_share, staleness_of
from outpace.observe.schema import Elsewhere
from outpace.protocol.ledger import Ledger

SHOWN = 3  #: places where others' collectives are waited for


@dataclass(frozen=True)
class RankStats:
    """What became of one rank's contributions."""

    rank: int
    state: str  #: active, syncing, finished or dead
    on_time: int
    carried: int
    dropped: int
    share: float  #: of all contributions that were applied
    incarnation: int = 1  #: 2 and more for a rank that was started again


@dataclass(frozen=True)
class Stats:
    """What this rank knows of the run so far."""

    rank: int
    version: int  #: rounds this replica has applied
    round: int  #: the open round, or the iteration nobody has published yet
    steps: int  #: steps of this rank
    waited_s: float  #: seconds this rank waited for others or reduced with them
    last: str  #: what became of the last contribution of this rank, in words
    grace_s: float  #: grace the next round would get
    ranks: tuple[RankStats, ...]
    staleness: dict[int, int]  #: rounds late -> how many contributions
    quorum: str = ""  #: where it follows the arrivals: how many of whom, and why
    elsewhere: tuple[Elsewhere, ...] = ()  #: waits in collectives that are not outpace's; known only while recording

    @property
    def late_share(self) -> float:
        """Share of the applied contributions that were late."""
        return late_share(self.staleness)

    def __str__(self) -> str:
        rows = [
            f"  rank {r.rank}: {r.state}, {r.on_time} on time, {r.carried} carried, {r.dropped} dropped, "
            f"{r.share:.0%} of all{f', incarnation {r.incarnation}' if r.incarnation > 1 else ''}"
            for r in self.ranks
        ]
        head = f"[rank {self.rank} - round {self.round}] {self.steps} steps, version {self.version}"
        waited = f"waited {self.waited_s:.1f} s, {self.late_share:.0%} of all contributions late"
        quorum = [f"  quorum {self.quorum}"] if self.quorum else []
        others = [f"  beside that it waited {each}" for each in self.elsewhere[:SHOWN]]
        return "\n".join([f"{head}, {waited}", *quorum, *others, *rows])


def stats_of(
    ledger: Ledger,
    rank: int,
    version: int,
    steps: int,
    waited_s: float,
    last: str,
    elsewhere: tuple[Elsewhere, ...] = (),
) -> Stats:
    tallies = ledger.members.tallies
    shares = applied_shares(tallies)
    ranks = []
    for number, member in sorted(ledger.members.by_rank.items()):
        tally = tallies[number]
        state = member.state if member.alive or member.state == "finished" else "dead"
        counts = tally.on_time, tally.carried, tally.dropped
        ranks.append(RankStats(number, state, *counts, shares[number], member.incarnation))
    grace = ledger.rules.grace
    grace_s = ledger.pace.grace_ns() / 1e9 if grace == "auto" else float(grace)
    open_round, staleness = max(ledger.round, ledger.published.furthest + 1), staleness_of(tallies.values())
    changes = ledger.choice.changes
    quorum = str(changes[-1]) if changes else ""
    known = rank, version, open_round, steps, waited_s, last, grace_s
    return Stats(*known, tuple(ranks), staleness, quorum, elsewhere)
