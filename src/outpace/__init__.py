"""outpace: PyTorch data-parallel training that does not wait for the slowest rank.

    face          DistributedOptimizer, spawn, record, the `outpace` command, races, simulations
    strategies    one short file for each algorithm, as in its paper
    engines       what a rank does in a step, on a log and a memory: arena, cluster, virtual
    replica       a rank's model and optimizer: all that touches user tensors
    protocol      pure: who is in which round, as the fold of a log

A layer imports only what lies below it; `make lint` checks that. docs/architecture.md has the rest.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from outpace.errors import (
    ArenaFull,
    ArenaInvalid,
    BelowQuorum,
    CannotRejoin,
    Finished,
    InvalidRules,
    ModelMismatch,
    NotInstalled,
    OutpaceError,
    ParametersChanged,
    RankFailed,
    SparseGradient,
    StoreLost,
    TimedOut,
    TraceInvalid,
    TrainingOver,
    UnknownName,
)
from outpace.version import __version__

if TYPE_CHECKING:
    from outpace.launching.spawn import spawn
    from outpace.observe.figures import RankStats, Stats
    from outpace.observe.record import Recording, record
    from outpace.optimizer import DistributedOptimizer
    from outpace.round_scheduler import RoundScheduler
    from outpace.simulation.training import Simulated, simulate
    from outpace.strategies import Eager, Strategy
    from outpace.training_state import TrainingState
else:
    #: imported when they are first asked for: a script pays for what it uses, and `outpace --help` not for torch
    _HOMES = {
        "DistributedOptimizer": "outpace.optimizer",
        "Eager": "outpace.strategies",
        "RankStats": "outpace.observe.figures",
        "Recording": "outpace.observe.record",
        "RoundScheduler": "outpace.round_scheduler",
        "Simulated": "outpace.simulation.training",
        "Stats": "outpace.observe.figures",
        "Strategy": "outpace.strategies",
        "TrainingState": "outpace.training_state",
        "record": "outpace.observe.record",
        "simulate": "outpace.simulation.training",
        "spawn": "outpace.launching.spawn",
    }

    def __getattr__(name: str) -> object:
        """A public name, or one of the packages below this one."""
        try:
            module = import_module(_HOMES.get(name, f"{__name__}.{name}"))
        except ModuleNotFoundError as error:
            if error.name != f"{__name__}.{name}":
                raise
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
        found = globals()[name] = getattr(module, name) if name in _HOMES else module
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__all__ = [
    "ArenaFull",
    "ArenaInvalid",
    "BelowQuorum",
    "CannotRejoin",
    "DistributedOptimizer",
    "Eager",
    "Finished",
    "InvalidRules",
    "ModelMismatch",
    "NotInstalled",
    "OutpaceError",
    "ParametersChanged",
    "RankFailed",
    "RankStats",
    "Recording",
    "RoundScheduler",
    "Simulated",
    "SparseGradient",
    "Stats",
    "StoreLost",
    "Strategy",
    "TimedOut",
    "TraceInvalid",
    "TrainingOver",
    "TrainingState",
    "UnknownName",
    "__version__",
    "record",
    "simulate",
    "spawn",
]
