"""outpace: PyTorch data-parallel training that does not wait for the slowest rank.

    face          DistributedOptimizer, the `outpace` command, reports
    strategies    one short file per algorithm
    protocol      pure: who is in which round, as the fold of a log
    engines       local (shared memory on one machine), virtual (simulated time)

Each layer knows only the one below it.
"""

from outpace.errors import (
    ArenaFull,
    ArenaInvalid,
    BelowQuorum,
    ModelMismatch,
    OutpaceError,
    RankFailed,
    TimedOut,
)
from outpace.launching.spawn import spawn
from outpace.observe.record import record
from outpace.optimizer import DistributedOptimizer
from outpace.simulation.own_loop import simulate
from outpace.strategies import Eager, Strategy
from outpace.training_state import TrainingState
from outpace.version import __version__

__all__ = [
    "ArenaFull",
    "ArenaInvalid",
    "BelowQuorum",
    "DistributedOptimizer",
    "Eager",
    "ModelMismatch",
    "OutpaceError",
    "RankFailed",
    "Strategy",
    "TimedOut",
    "TrainingState",
    "__version__",
    "record",
    "simulate",
    "spawn",
]
