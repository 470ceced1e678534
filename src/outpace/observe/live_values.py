"""What is known of a job while it runs, as values. Owns their shape; reads no file and computes no figure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

ENDED = ("finished", "cut")


@dataclass(frozen=True)
class RankLive:
    """One rank. Times are on the monotonic clock of the first rank's host; figures are of its last steps."""

    rank: int
    host: str
    state: str  #: "starting", "running", "synchronize", "finish" (waits there), "finished", "cut" (records no more)
    steps: int  #: so far: the number of its last one
    begin_ns: int | None  #: of the last step, as `ready_ns` and `end_ns`
    ready_ns: int | None
    end_ns: int | None
    compute_ms: float | None  #: mean of the last steps, as `waited_ms`
    waited_ms: float | None
    step_ms: float | None  #: what a step usually takes, from its begin to its end
    into_step_s: float | None  #: how long ago its last step, or pause, ended; None while it pauses or after its end
    steps_per_s: float
    samples_per_s: float | None
    loss: float | None  #: of the last step that had one
    late_rounds: int  #: rounds decided while its last step was computed, or since that, if these are more
    late_ms: float | None  #: after the first rank's, its gradients were ready, where all wait for all
    share: float | None  #: of the contributions in all rounds seen

    @property
    def takes_steps(self) -> bool:
        """Whether more steps of it are to be expected."""
        return self.state not in ("finish", *ENDED)

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come of it."""
        return self.state in ENDED


@dataclass(frozen=True)
class Live:
    """A running job, as its files show it."""

    directory: str
    strategy: str
    world: int | None  #: None before the first header
    ranks: tuple[RankLive, ...]  #: in order; who has no file yet is missing
    seconds: float  #: from the first thing that was read to the last
    rounds: int | None  #: decided so far; None where nothing was said of rounds
    rounds_per_s: float | None
    staleness: dict[int, int]  #: of recent rounds: rounds late -> how many contributions
    loss: float | None  #: mean over the last ones of the ranks that still take steps, or of all if none does
    samples_per_s: float | None  #: of the same ranks together
    late_rank: int | None  #: who is late now
    late_words: str  #: who, and by how much, in words
    silent_s: float | None  #: since anything was heard of any rank; None if nothing ever was
    skipped: int  #: lines that make no sense
    lost: int  #: lines that a slow disk left no room for

    @property
    def has_begun(self) -> bool:
        """Whether any rank has made a step."""
        return any(rank.steps for rank in self.ranks)

    @property
    def has_ended(self) -> bool:
        """Whether all ranks have finished, or record no more."""
        return self.world is not None and len(self.ranks) >= self.world and all(r.has_ended for r in self.ranks)

    def to_json(self) -> dict[str, Any]:
        """Every figure, in plain values."""
        return {**asdict(self), "has_ended": self.has_ended}
