"""What is remembered of one rank that is followed: a little of the latest, and counts. Owns how much that is."""

from __future__ import annotations

from collections import Counter, deque

from outpace.observe.trace import Pause, Step, Tally, TracedRound
from outpace.observe.trace_events import Cut, Event, Finished, Foreign, Lost, Pausing, event_of
from outpace.observe.trace_life import Life
from outpace.observe.trace_values import Nonsense

KEPT_STEPS = 256
KEPT_ROUNDS = 128


class RankState:
    """Takes the lines of one rank's file, one after the other. A function of the lines alone, not of when they came."""

    def __init__(self, rank: int | None) -> None:
        self.rank = rank  #: None while neither the file's name nor a header says so
        self.life: Life | None = None  #: the last header
        self.steps: deque[Step] = deque(maxlen=KEPT_STEPS)
        self.rounds: deque[TracedRound] = deque(maxlen=KEPT_ROUNDS)  #: that it recorded
        self.given: Counter[int] = Counter()  #: contributions of each rank, in all rounds that it recorded
        self.state = "starting"
        self.loss: float | None = None
        self.first_ns: int | None = None
        self.last_ns: int | None = None  #: the latest moment that was spoken of
        self.since_ns: int | None = None  #: it has been computing since
        self.skipped = self.lost = 0
        self._is_foreign = False

    def take(self, line: bytes | None) -> None:
        """Believes what can be believed of a line; None was too long."""
        if line is not None and not line.strip():
            return
        try:
            event = event_of(line, self.rank or 0)
            self._take(event)
        except Nonsense:
            self.skipped += 1

    def _take(self, event: Event) -> None:
        if isinstance(event, (Life, Foreign)):
            self._begin(event)
        elif self._is_foreign:
            raise Nonsense("follows a header of another format")
        elif isinstance(event, Step):
            self._step(event)
        elif isinstance(event, TracedRound):
            self.rounds.append(event)
            self.given.update(given.rank for given in event.contributions)
            self._heard(event.at_ns, event.at_ns)
        elif isinstance(event, Lost):
            self.lost += event.lines
        elif not isinstance(event, Tally):  # shares are those of rounds, which are known before the end
            self._paused(event)

    def _begin(self, header: Life | Foreign) -> None:
        """A new life: what a rank was doing in the one before no longer counts."""
        self._is_foreign = isinstance(header, Foreign)
        if isinstance(header, Foreign) or (self.rank is not None and header.rank != self.rank):
            raise Nonsense("is no header of this rank, or of another format")
        self.rank, self.life = header.rank, header
        self.steps.clear()
        self.state, self.since_ns = "running", None

    def _step(self, step: Step) -> None:
        self.steps.append(step)
        self.loss = step.loss if step.loss is not None else self.loss
        self.state, self.since_ns = "running", step.end_ns
        self._heard(step.begin_ns, step.end_ns)

    def _paused(self, event: Pause | Pausing | Finished | Cut) -> None:
        if isinstance(event, Pausing):
            self.state, self.since_ns = event.name, None
            self._heard(event.begin_ns, event.begin_ns)
        elif isinstance(event, Pause):
            self.state, self.since_ns = "running", event.end_ns
            self._heard(event.begin_ns, event.end_ns)
        elif isinstance(event, Finished):
            self.state, self.since_ns = "finished", None
            self._heard(event.at_ns, event.at_ns)
        else:
            self.state, self.since_ns = "cut", None

    def _heard(self, begin_ns: int, end_ns: int) -> None:
        self.first_ns = begin_ns if self.first_ns is None else min(self.first_ns, begin_ns)
        self.last_ns = end_ns if self.last_ns is None else max(self.last_ns, end_ns)
