"""DropCompute: stay synchronous, and stop computing at a threshold.

Niv Giladi, Shahar Gottlieb, Moran Shkolnik, Asaf Karnieli, Ron Banner, Elad Hoffer, Kfir Yehuda Levy, Daniel Soudry:
"DropCompute: simple and more robust distributed synchronous training via compute variance reduction", NeurIPS 2023.

    g = (1/N) * sum over i of (1/M) * sum over m <= M_i of g_im

Rank i stops after M_i of its M micro-batches, at the first boundary after tau. Then all ranks wait for each other, but
none arrives later than tau plus one micro-batch. What was not computed is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from outpace.errors import InvalidRules
from outpace.interface import Engine, Ticket, Work
from outpace.protocol.rules import Rules
from outpace.strategies.base import After, CountsMicrobatches

CANDIDATES = 200  #: thresholds that are tried
SETTLING = 5  #: first steps, whose warm-up is ignored when tau is chosen


@dataclass(frozen=True)
class DropCompute(CountsMicrobatches):
    """Each rank stops computing at a threshold, by its own clock.

    tau_ms: the threshold, or "auto": the first `calibrate` steps drop nothing, and all ranks choose the same threshold
        from what all of them measured.
    calibrate: how many steps to measure.
    rest, normalise: as in `CountsMicrobatches`; the defaults are those of the paper's code.

    Has an effect only in `DistributedOptimizer.rounds` with several micro-batches; a plain loop has nothing to drop.
    """

    tau_ms: str | float = "auto"
    calibrate: int = 50
    rest: str = "drop"

    def __post_init__(self) -> None:
        super().__post_init__()
        good = isinstance(self.tau_ms, (int, float)) and not isinstance(self.tau_ms, bool) and self.tau_ms > 0
        if self.tau_ms != "auto" and not good:
            raise InvalidRules(f'dropcompute: tau_ms={self.tau_ms!r} must be "auto" or more than 0 milliseconds')
        if not isinstance(self.calibrate, int) or self.calibrate < 1:
            raise InvalidRules(f"dropcompute: calibrate={self.calibrate!r} must be a number of steps, at least 1")

    def rules(self, world: int) -> Rules:
        return self._rules(world, quorum="full", grace=0.0)

    async def microbatch(self, engine: Engine, work: Work) -> After:
        elapsed = self._note_time(engine)
        tau = self._tau(engine)
        return After.GO_ON if tau is None or elapsed <= tau else After.STOP

    async def step(self, engine: Engine, work: Work) -> Ticket:
        self._note_time(engine)
        self._check(engine)
        ticket = await engine.finish_round(await engine.begin(work))
        self._end_round(engine)
        return ticket

    # -- the clock -------------------------------------------------------------------------------------------------

    def _note_time(self, engine: Engine) -> float:
        """Seconds since this round began."""
        elapsed = engine.now_s() - engine.began_s
        engine.state.setdefault("times", []).append(elapsed)
        return elapsed

    def _check(self, engine: Engine) -> None:
        """Checks the threshold against the first round, before contributing to it."""
        times, tau = engine.state.get("times"), self.tau_ms
        if engine.state.get("checked") or not times or len(times) < 2 or isinstance(tau, str):
            return
        engine.state["checked"] = True
        shortest = min(b - a for a, b in zip([0.0, *times], times, strict=False))
        if shortest * 1e3 > tau:
            raise InvalidRules(
                f"dropcompute: tau_ms={tau:g} is shorter than one micro-batch, which takes {shortest * 1e3:.3g} ms on "
                f"rank {engine.rank}: nearly everything would be dropped. Choose a larger one, or tau_ms=auto"
            )

    def _tau(self, engine: Engine) -> float | None:
        """The threshold in seconds; None while nothing is dropped."""
        if not isinstance(self.tau_ms, str):
            return self.tau_ms / 1e3 if engine.state.get("checked") else None
        tau: float | None = engine.state.get("tau")
        return tau

    def _end_round(self, engine: Engine) -> None:
        memory = engine.state
        times = memory.pop("times", [])
        now, step = engine.now_s(), memory.get("rounds", 0)
        if self.tau_ms == "auto" and step <= self.calibrate and times:
            ends = [*times, now - engine.began_s]
            for index in reversed(range(len(ends))):  # last first, so that a row with an index 0 is complete
                engine.tell(step, index, ends[index])
        memory["rounds"] = step + 1
        if self.tau_ms == "auto" and step > self.calibrate and "tau" not in memory:
            memory["tau"] = self._calibrated(engine)

    def _calibrated(self, engine: Engine) -> float | None:
        """The best threshold. All ranks with equally many steps find the same, because each sends its times up to
        `calibrate` before it contributes the next step. Ranks with incomplete times are left out."""
        first = min(SETTLING, self.calibrate - 1) + 1
        told = {
            rank: [_row(said, step) for step in range(first, self.calibrate + 1)]
            for rank, said in sorted(engine.ledger.told.items())
        }
        return best_threshold([rows for rows in told.values() if all(rows)])


def _row(said: dict[tuple[int, int], float], step: int) -> list[float]:
    """A rank's times of a step: when each micro-batch ended, and the step itself."""
    found: list[float] = []
    while (step, len(found)) in said:
        found.append(said[step, len(found)])
    return found


def best_threshold(told: Sequence[Sequence[Sequence[float]]]) -> float | None:
    """Seconds after which to stop; None if dropping gains nothing. Pure, so that all ranks find the same.

    Chooses the candidate with the largest effective speed-up: the share of work kept over the share of time kept.

    `told[rank][step]` lists when each micro-batch ended, and finally the step itself, in seconds since the step began.

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
    """The speed-up of stopping at tau, minus 1; 0 at the longest time. `steps[step][rank]` lists times as above."""
    longest = [max(row[-2] for row in rows) for rows in steps]
    overhead = sum(max(row[-1] for row in rows) for rows in steps) / len(steps) - sum(longest) / len(steps)
    gains = []
    for rows, full in zip(steps, longest, strict=True):
        ends = [end for row in rows for end in row[:-1]]
        kept = max((max((end for end in row[:-1] if end <= tau), default=0.0) for row in rows), default=0.0)
        dropped = sum(end > tau for end in ends) / len(ends)
        gains.append((1 - dropped) / (1 - (full - kept) / (full + overhead)))
    return sum(gains) / len(gains) - 1
