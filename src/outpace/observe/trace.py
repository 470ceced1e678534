"""A trace: what all ranks of a run recorded, as values on one clock. Owns its shape; reads no file."""

from __future__ import annotations

from dataclasses import dataclass

from outpace.observe.schema import Pause, Step, Tally, TracedRound


@dataclass(frozen=True)
class RankTrace:
    """What one rank recorded: at least one step. Times begin with 0, on a clock that all ranks share."""

    rank: int
    host: str
    steps: tuple[Step, ...]
    pauses: tuple[Pause, ...] = ()
    tally: Tally | None = None  #: where there were rounds, or weights to average

    @property
    def end_ns(self) -> int:
        return max([self.steps[-1].end_ns, *(pause.end_ns for pause in self.pauses)])


@dataclass(frozen=True)
class Trace:
    world: int
    strategy: str
    payload_bytes: int  #: that one rank contributes to a round
    ranks: dict[int, RankTrace]  #: in order; some may be missing
    rounds: tuple[TracedRound, ...] = ()  #: in order of time
    skipped: tuple[str, ...] = ()  #: what was left out, in words
