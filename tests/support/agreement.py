"""What holds of all replicas of a job, by what each of them reported."""

from __future__ import annotations

from tests.support import ranks


def agree(reports: list[ranks.Report]) -> dict[int, str]:
    """All replicas had the same bits after every round they both applied; returns the digest of each round."""
    seen: dict[int, str] = {}
    for report in reports:
        for number, found in report.digests.items():
            assert seen.setdefault(number, found) == found, f"rank {report.rank} differs after round {number}"
    assert len({report.final for report in reports}) == 1
    return seen


def contributions(reports: list[ranks.Report]) -> list[tuple[int, int, int]]:
    """All contributions that any round took in. Every rank that applied a round saw the same set."""
    rounds: dict[int, list[tuple[int, int, int]]] = {}
    for report in reports:
        for number, members in report.rounds.items():
            assert rounds.setdefault(number, members) == members
    return [c for members in rounds.values() for c in members]
