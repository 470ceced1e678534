"""One run of the benchmarks: how often and how long to measure, what to say meanwhile, and when to stop."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Run:
    """What every section is given."""

    repeat: int = 5
    quick: bool = False  #: only to see that everything works: few repeats, small sizes
    interrupted: bool = False  #: Ctrl-C was heard
    _began_s: float = field(default_factory=time.monotonic)

    def say(self, text: str) -> None:
        """Progress, on standard error."""
        print(f"[{time.monotonic() - self._began_s:5.0f} s] {text}", file=sys.stderr, flush=True)

    def repeats(self, what: str, most: int | None = None) -> Iterator[int]:
        """The numbers of the repeats, each announced."""
        count = self.repeat if most is None else min(self.repeat, most)
        for index in range(count):
            self.say(f"{what}: repeat {index + 1} of {count}")
            yield index

    @contextmanager
    def until_ctrl_c(self) -> Iterator[None]:
        """Ctrl-C ends what is inside; the section goes on with what was measured by then."""
        try:
            yield
        except KeyboardInterrupt:
            self.interrupted = True
