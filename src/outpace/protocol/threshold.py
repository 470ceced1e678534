"""DropCompute's threshold from measured times. Owns the score; a pure function, so that all ranks find the same.

Giladi et al., NeurIPS 2023: of many candidates the one with the largest effective speed-up, which is the share of work
that is kept, divided by the share of time that is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

CANDIDATES = 200


def best_threshold(told: Sequence[Sequence[Sequence[float]]]) -> float | None:
    """Seconds after which to stop; None if dropping gains nothing.

    `told[rank][step]` lists when each micro-batch ended, and at last the step itself, in seconds since the step began.

    >>> steady = [[1.0, 2.0, 3.0, 4.0, 4.1]] * 3
    >>> best_threshold([steady, steady]) is None
    True
    >>> slow = [[1.0, 2.0, 3.0, 20.0, 20.1], *steady[1:]]
    >>> 3.0 <= best_threshold([steady, slow]) < 20.0
    True
    """
    steps = [list(rows) for rows in zip(*told, strict=False)]
    if not steps:
        return None
    least = min(min(row[:-1][len(row[:-1]) // 2 :][:1] or [math.inf]) for rows in steps for row in rows)
    most = max(row[-2] for rows in steps for row in rows)
    if not least < most:
        return None
    candidates = [least + (most - least) * i / (CANDIDATES - 1) for i in range(CANDIDATES)]
    scores = [score(tau, steps) for tau in candidates]
    best = max(range(CANDIDATES), key=scores.__getitem__)
    return candidates[best] if scores[best] > 0 else None


def score(tau: float, steps: Sequence[Sequence[Sequence[float]]]) -> float:
    """The speed-up of stopping at tau, beyond 1: `steps[step][rank]` as told. Nothing is gained at the longest time."""
    longest = [max(row[-2] for row in rows) for rows in steps]
    overhead = sum(max(row[-1] for row in rows) for rows in steps) / len(steps) - sum(longest) / len(steps)
    gains = []
    for rows, full in zip(steps, longest, strict=True):
        ends = [end for row in rows for end in row[:-1]]
        kept = max((max((end for end in row[:-1] if end <= tau), default=0.0) for row in rows), default=0.0)
        dropped = sum(end > tau for end in ends) / len(ends)
        gains.append((1 - dropped) / (1 - (full - kept) / (full + overhead)))
    return sum(gains) / len(gains) - 1
