"""An imbalance that was seen, not drawn. Owns how a recorded run stands for another world and another length."""

from __future__ import annotations

from dataclasses import dataclass, field

from outpace.errors import InvalidRules
from outpace.observe.figures import steady
from outpace.observe.reader import read_trace
from outpace.observe.schema import Trace

APART = 17  #: steps by which a stand-in is ahead of the rank it does as, or of the next stand-in


@dataclass(frozen=True)
class Replay:
    """What a trace shows, again: each rank computes as long as it did at that step.

    Each rank's first two steps, which warm up, are left out where there are more than four. A longer run goes through
    the recorded steps again and again. A rank that left no trace, or that only a larger world has, does as a recorded
    one does, but some steps ahead of it: the two would be slow together otherwise.
    """

    lengths_s: dict[int, tuple[float, ...]]  #: for each recorded rank, how long its steps were

    @classmethod
    def of(cls, trace: Trace) -> Replay:
        return cls({rank: tuple(step.compute_s for step in steady(r)) for rank, r in trace.ranks.items()})

    def compute_s(self, rank: int, world: int, step: int, base_s: float) -> float:
        steps = self.lengths_s.get(rank)
        if steps is None:
            others = list(self.lengths_s.values())
            steps = others[rank % len(others)]
            step += (1 + rank // len(others)) * APART
        return steps[step % len(steps)]


@dataclass(frozen=True)
class Recorded:
    """As in a recorded run: every rank computes as long as it did in `path` (see `outpace.record` and `Replay`).

    Read once, when the model is made; raises `TraceInvalid`. In a name with options ("trace:path=runs/x") the path
    cannot have a comma.
    """

    path: str = ""
    _replay: Replay = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.path == "":
            raise InvalidRules("a recorded imbalance needs the directory of a recording, as in trace:path=runs/x")
        trace = read_trace(str(self.path))  # a name like 2024 comes as a number
        object.__setattr__(self, "_replay", Replay.of(trace))

    def compute_s(self, rank: int, world: int, step: int, base_s: float) -> float:
        return self._replay.compute_s(rank, world, step, base_s)
