"""What faults cost those that they did not hit, and how long a killed rank was missing. Reads diaries only."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from tests.faults.soak.diary import Life
from tests.faults.soak.episode import Episode
from tests.faults.soak.injectors import Fault

BOUND_S = 1.0  #: nobody needs longer for a step because of others, also on a machine that is busy
LONG_STOP_S = 0.3  #: shorter ones show no rate
QUIET_S = 0.2  #: steps so close to a fault do not count as undisturbed


@dataclass
class Waits:
    """Of one job or of many. Seconds."""

    in_step: list[float] = field(default_factory=list)  #: each step while nothing was wrong
    in_fault: list[float] = field(default_factory=list)  #: for each fault, the longest step of the ranks it did not hit
    held_up: list[str] = field(default_factory=list)  #: steps longer than `BOUND_S`, in words
    extra: list[float] = field(default_factory=list)  #: the same beyond the median of undisturbed steps
    recovery: list[float] = field(default_factory=list)  #: from death to first contribution, without start-up
    start_up: list[float] = field(default_factory=list)
    quiet_steps: int = 0
    quiet_s: float = 0.0  #: times the number of ranks
    stopped_steps: int = 0  #: of the others, while one rank was stopped and nothing else was wrong
    stopped_s: float = 0.0

    def add(self, other: Waits) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    @property
    def rate_kept(self) -> float | None:
        """Steps per second of the others while a rank is stopped, as a share of what they make undisturbed."""
        if not (self.quiet_s and self.stopped_s and self.quiet_steps):
            return None
        return (self.stopped_steps / self.stopped_s) / (self.quiet_steps / self.quiet_s)


def waits_of(episode: Episode) -> Waits:
    """All figures of one job."""
    found = Waits()
    faults = [fault for fault in episode.faults if fault.ended_s is not None]
    lives = [life for life in episode.job.all_lives() if len(life.steps) > 1]
    _quiet(found, lives, episode.faults)
    usual = sorted(found.in_step)[len(found.in_step) // 2] if found.in_step else 0.0
    for fault in faults:
        others = _others(episode, fault)
        longest, waiting = max(
            ((_longest(life, fault, episode.faults), life.rank) for life in others), default=(0.0, 0)
        )
        found.in_fault.append(longest)
        found.extra.append(max(0.0, longest - usual))
        if longest - usual > BOUND_S:
            lasted = f"{fault.kind} of rank {fault.rank} for {fault.ended_s - fault.began_s:.2f} s"
            found.held_up.append(f"rank {waiting} waited {longest:.2f} s in a step during a {lasted}")
        if fault.kind == "stop" and fault.is_alone and fault.ended_s - fault.began_s >= LONG_STOP_S:
            found.stopped_steps += sum(_steps_between(life, fault.began_s, fault.ended_s) for life in others)
            found.stopped_s += (fault.ended_s - fault.began_s) * len(others)
        if fault.kind == "kill":
            _recovered(found, episode, fault)
    return found


def _recovered(found: Waits, episode: Episode, fault: Fault) -> None:
    """Whoever was stopped or killed again before it contributed shows nothing."""
    replacement = next((life for life in episode.job.lives[fault.rank] if life.life == fault.life + 1), None)
    if replacement is None or not replacement.steps:
        return
    at_s = replacement.steps[0][1]
    start_up = replacement.ready_s - replacement.process_began_s
    found.start_up.append(start_up)
    found.recovery.append(at_s - fault.began_s - start_up)


def _others(episode: Episode, fault: Fault) -> list[Life]:
    """Lives that contributed before and after, and that no other fault hit meanwhile."""
    hit = {
        other.rank
        for other in episode.faults
        if other.began_s < fault.ended_s and (other.ended_s is None or other.ended_s > fault.began_s - QUIET_S)
    }
    return [
        life
        for life in episode.job.all_lives()
        if life.rank not in hit
        and life.steps
        and life.steps[0][1] < fault.began_s
        and life.steps[-1][1] > fault.ended_s
    ]


def _longest(life: Life, fault: Fault, faults: list[Fault]) -> float:
    """The longest step that overlaps with the fault, of those that its own rank was not hit in."""
    own = [(f.began_s, f.ended_s or fault.ended_s) for f in faults if f.rank == life.rank]
    first = bisect_left(life.steps, fault.began_s, key=lambda step: step[1])
    overlapping = []
    for began_s, ended_s in life.steps[first:]:
        if began_s > fault.ended_s:
            break
        if not any(hit_s < ended_s and over_s > began_s for hit_s, over_s in own):
            overlapping.append(ended_s - began_s)
    return max(overlapping, default=0.0)


def _steps_between(life: Life, began_s: float, ended_s: float) -> int:
    return sum(began_s <= end < ended_s for _, end in life.steps)


def _quiet(found: Waits, lives: list[Life], faults: list[Fault]) -> None:
    """Steps while nothing was wrong and all ranks were there."""
    since = max((life.steps[0][1] for life in lives if life.life == 1), default=0.0)
    until = min((life.steps[-1][1] for life in lives if life.end is not None), default=since)
    times = sorted((f.began_s, f.ended_s if f.ended_s is not None else until) for f in faults)
    for began_s, ended_s in [*times, (until, until)]:
        if began_s - since > 2 * QUIET_S:
            here = [life for life in lives if life.steps[0][1] <= since and life.steps[-1][1] >= began_s]
            found.quiet_s += (began_s - since) * len(here)
            for life in here:
                inside = [end - begin for begin, end in life.steps if since <= begin and end < began_s]
                found.quiet_steps += _steps_between(life, since, began_s)
                found.in_step += inside
        since = max(since, ended_s + QUIET_S)
