"""Named points at which a test may stop or kill this rank. Costs one comparison when no fault is asked for.

`OUTPACE_FAULT=stop:reducing:17` stops this process (SIGSTOP) the first time it passes the point `reducing` in round 17
or later; `kill` ends it with SIGKILL. It exists so that the guarantees can be tested where they are hardest to keep.
"""

from __future__ import annotations

import os
import signal

POINTS = (
    "depositing",
    "before-append",
    "after-append",
    "before-wake",
    "reducing",
    "opening-attempt",
    "applying",
    "writing-snapshot",
)


class Faults:
    """The fault asked for through the environment, if any."""

    def __init__(self) -> None:
        self._armed: tuple[str, int, int] | None = None
        asked = os.environ.get("OUTPACE_FAULT")
        if asked:
            action, point, round_ = asked.split(":")
            if point not in POINTS:
                raise ValueError(f"OUTPACE_FAULT names point {point!r}; choose one of {', '.join(POINTS)}")
            number = {"stop": signal.SIGSTOP, "kill": signal.SIGKILL}[action]
            self._armed = (point, int(round_), number)

    def at(self, point: str, round_: int) -> None:
        """Passes a point."""
        if self._armed is not None and self._armed[0] == point and round_ >= self._armed[1]:
            number = self._armed[2]
            self._armed = None
            os.kill(os.getpid(), number)
