"""outpace: PyTorch data-parallel training that does not wait for the slowest rank.

    face          DistributedOptimizer, spawn, record, the `outpace` command, races, simulations
    strategies    one short file for each algorithm, as in its paper
    engines       what a rank does in a step, on a log and a memory: arena, cluster, virtual
    replica       a rank's model and optimizer: all that touches user tensors
    protocol      pure: who is in which round, as the fold of a log

A layer imports only what lies below it; `make lint` checks that. docs/architecture.md has the rest.
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
from outpace.round_scheduler import RoundScheduler
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
    "RoundScheduler",
    "Strategy",
    "TimedOut",
    "TrainingState",
    "__version__",
    "record",
    "simulate",
    "spawn",
]
