"""outpace: PyTorch data-parallel training that does not wait for the slowest rank.

    cli, race, simulation    commands, races, simulated runs
    optimizer                the face: what a training script holds
    observe                  what is recorded
    strategies               one file for each family of algorithms
    engines                  what a rank does: one engine, given a log and a memory (arena, cluster, virtual)
    replica                  one rank's model and optimizer
    interface, codecs        what engines, strategies and replicas share
    protocol, mixing         pure: who is in which round, as the fold of a log; graphs and schedules

A layer imports only what lies below it; docs/architecture.md has more.
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
