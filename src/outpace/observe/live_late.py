"""Who is late now. Owns that judgement and its words; pure."""

from __future__ import annotations

from collections.abc import Sequence

from outpace.observe.live_values import RankLive

OVERDUE = 1.5  #: times the usual step
WRITING_S = 0.6  #: lines are written every half a second, so that a step may have ended so long ago, unheard of
NOTABLE_SHARE = 0.1  #: of a step: gradients that are ready so much later than the first rank's are late
NOTABLE_MS = 1.0


def who_is_late(ranks: Sequence[RankLive], silent_s: float | None) -> tuple[int | None, str]:
    """The rank that is furthest behind, and why in words; nobody, if the others go no further either."""
    active = [rank for rank in ranks if not rank.has_ended]
    if not ranks:
        return None, "nothing was heard of any rank yet"
    if not active:
        return None, "all ranks that were seen have finished"
    overdue = [rank for rank in active if _is_overdue(rank)]
    if silent_s is not None and overdue and len(overdue) == sum(rank.steps > 0 for rank in active):
        usual_s = max(rank.step_ms or 0.0 for rank in overdue) / 1000
        return None, f"no rank has ended a step for {silent_s:.1f} s; one usually takes {_seconds(usual_s)}"
    return _furthest_behind(overdue, active)


def _furthest_behind(overdue: Sequence[RankLive], active: Sequence[RankLive]) -> tuple[int | None, str]:
    if overdue:
        worst = max(overdue, key=_overdue_by)
        into, usual = f"{worst.into_step_s or 0.0:.1f} s", _seconds((worst.step_ms or 0.0) / 1000)
        return worst.rank, f"rank {worst.rank} is late: {into} into a step that usually takes {usual}"
    behind = max(active, key=lambda rank: (rank.late_rounds, rank.compute_ms or 0.0))
    if behind.late_rounds:
        rounds = "1 round" if behind.late_rounds == 1 else f"{behind.late_rounds} rounds"
        return behind.rank, f"rank {behind.rank} is late: {rounds} behind"
    after = max(active, key=lambda rank: rank.late_ms or 0.0)
    if (after.late_ms or 0.0) > max(NOTABLE_MS, NOTABLE_SHARE * (after.step_ms or 0.0)):
        by = _seconds((after.late_ms or 0.0) / 1000)
        return after.rank, f"rank {after.rank} is late: its gradients were ready {by} after the first rank's"
    return None, "nobody is late"


def _is_overdue(rank: RankLive) -> bool:
    if rank.into_step_s is None or rank.step_ms is None:
        return False
    return rank.into_step_s > OVERDUE * rank.step_ms / 1000 + WRITING_S


def _overdue_by(rank: RankLive) -> float:
    return (rank.into_step_s or 0.0) / max(1e-6, (rank.step_ms or 0.0) / 1000)


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 0.1 else f"{seconds * 1000:.0f} ms"
