"""One life of a rank: a header and what follows it. Owns what is believed of a header."""

from __future__ import annotations

from collections.abc import Iterator

from outpace.observe.trace import Pause, Step, Tally, TracedRound
from outpace.observe.trace_lines import Plain
from outpace.observe.trace_values import MOST_RANKS, number, text, whole


class Life:
    """The header of one incarnation, and what it recorded, on its own clock."""

    def __init__(self, line: Plain | None = None) -> None:
        self.steps: list[Step] = []
        self.pauses: list[Pause] = []
        self.rounds: list[TracedRound] = []
        self.tally: Tally | None = None
        self.host, self.strategy, self.payload_bytes = "unknown", "unknown", 0
        self.rank: int | None = None
        self.world: int | None = None
        self.unix_ns = self.clock_ns = 0  #: when it began; what to add to its times to get the time of day
        if line is not None:
            self._read(line)

    def moments(self) -> Iterator[int]:
        """When things began, on its own clock."""
        yield from (step.begin_ns for step in self.steps)
        yield from (pause.begin_ns for pause in self.pauses)
        yield from (round_.at_ns for round_ in self.rounds)

    def _read(self, line: Plain) -> None:
        self.world = whole(line, "world", least=1, most=MOST_RANKS)
        self.rank = whole(line, "rank", most=self.world - 1)
        self.host, self.strategy = text(line, "host"), text(line, "strategy")
        self.payload_bytes = whole(line, "payload_bytes")
        self.unix_ns = int(number(line, "unix_s") * 1e9)
        self.clock_ns = self.unix_ns - whole(line, "monotonic_ns")
