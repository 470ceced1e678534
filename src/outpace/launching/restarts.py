"""When a rank that ended is started again. Owns back-off and limit; looks at no clock and starts nothing.

>>> restarts = Restarts(limit=3)
>>> [restarts.after(now_s, lived_s=5.0) for now_s in (10.0, 20.0, 30.0, 40.0)]
[0.1, 0.2, 0.4, None]
"""

from __future__ import annotations

WINDOW_S = 600.0  #: restarts longer ago are forgotten
FIRST_S, LONGEST_S = 0.1, 10.0  #: a rank is started again after so long, twice that the next time, and so on
HEALTHY_S = 30.0  #: a rank that lived so long begins with the shortest delay again


class Restarts:
    """The restarts of one rank."""

    def __init__(self, limit: int) -> None:
        self.limit = limit  #: within `WINDOW_S`
        self._at: list[float] = []
        self._delay_s = FIRST_S

    @property
    def count(self) -> int:
        """Restarts that are not forgotten yet."""
        return len(self._at)

    def after(self, now_s: float, lived_s: float) -> float | None:
        """Seconds until the rank is started again, which ended now after a life of `lived_s`; None if it is not."""
        self._at = [at for at in self._at if now_s - at < WINDOW_S]
        if len(self._at) >= self.limit:
            return None
        self._at.append(now_s)
        delay_s = FIRST_S if lived_s >= HEALTHY_S else self._delay_s
        self._delay_s = min(2 * delay_s, LONGEST_S)
        return delay_s
