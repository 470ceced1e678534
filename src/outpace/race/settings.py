"""What all systems of a race have in common. Owns the checks of its own options."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from outpace.errors import InvalidRules


@dataclass(frozen=True)
class Settings:
    """A workload, the ranks that train it, how long, and what slows them down.

    epochs, rounds, seconds: how long each rank trains; one of them. A round is one mini-batch of every rank.
    target: the metric that the time to target is taken of; by default 98 % of what DDP learns.
    compute_ms: emulated computing of a mean mini-batch; 0 computes for real, which is honest for ranks up to cores.
    microbatches: of a mini-batch, for strategies that may end one early.
    repeat: how often every system runs, each time with the next seed.
    script, arguments: a training script to run instead of a workload, and what stands behind it on its command line.
    """

    workload: str = "hyperplane"
    ranks: int = 8
    imbalance: str = "none"
    epochs: float | None = None
    rounds: int | None = None
    seconds: float | None = None
    target: float | None = None
    compute_ms: float = 100.0
    microbatches: int = 4
    seed: int = 0
    repeat: int = 1
    script: str | None = None
    arguments: tuple[str, ...] = ()

    @property
    def trains(self) -> str:
        """What is trained, as people call it."""
        return self.workload if self.script is None else Path(self.script).name

    @property
    def is_emulated(self) -> bool:
        """Whether computing is a sleep."""
        return self.script is None and self.compute_ms > 0

    def __post_init__(self) -> None:
        for name in ("ranks", "microbatches", "repeat"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InvalidRules(f"{name}={value!r} must be a whole number, at least 1")
        lengths = {
            name: value for name in ("epochs", "rounds", "seconds") if (value := getattr(self, name)) is not None
        }
        if len(lengths) > 1:
            raise InvalidRules(f"a race has one length: give one of {' and '.join(lengths)}, not {len(lengths)}")
        for name, value in lengths.items():
            if not 0 < value < math.inf:
                raise InvalidRules(f"{name}={value!r} must be more than 0")
        if not 0 <= self.compute_ms < math.inf:
            raise InvalidRules(f"compute_ms={self.compute_ms!r} must be a number of milliseconds, 0 or more")
