"""Errors, each named after its situation. A message says what happened, to whom, and what you can do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class OutpaceError(RuntimeError):
    """Base of every error that outpace raises."""


class ModelMismatch(OutpaceError):
    """A rank brought another model, optimizer or strategy than the rank that opened the arena."""


class ArenaFull(OutpaceError):
    """There is not enough shared memory for training."""


class ArenaInvalid(OutpaceError):
    """A file that should be this job's arena is something else, or damaged."""


class BelowQuorum(OutpaceError):
    """Fewer ranks live than `min_ranks`, so no further round may be committed."""


class TrainingOver(OutpaceError):
    """A rank was restarted after all others had finished the training it wants to join."""


class StoreLost(OutpaceError):
    """The store that connects the hosts is gone or unreachable. Restart from the last checkpoint."""


class CannotRejoin(OutpaceError):
    """A rank was restarted, but the job uses something besides outpace that cannot take a rank back. Restart from the
    last checkpoint."""


class TimedOut(OutpaceError):
    """A wait exceeded its timeout. The message names the ranks waited for."""


class RankFailed(OutpaceError):
    """A rank started by `spawn` raised an error; carries that rank's traceback."""

    def __init__(self, message: str, rank: int) -> None:
        super().__init__(message)
        self.rank = rank


class Finished(OutpaceError):
    """The optimizer was used after `finish()`."""


class SparseGradient(OutpaceError):
    """A parameter has a sparse gradient, which a dense contribution cannot hold."""


class ParametersChanged(OutpaceError):
    """Parameters were added or removed after construction."""


class TraceInvalid(OutpaceError):
    """A file that should be a recorded trace is something else, or unreadable."""


class InvalidRules(OutpaceError, ValueError):
    """A strategy or option was given an invalid value."""


class UnknownName(OutpaceError, ValueError):
    """No strategy, imbalance or workload has this name."""


class NotInstalled(OutpaceError, ModuleNotFoundError):
    """An optional package is missing. The message has the command that installs it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed: pip install 'outpace[{extra}]'")
        self.name = package


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Wraps imports of packages that come with `pip install outpace[NAME]`; raises `NotInstalled` if one is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or name).partition(".")[0]
        if package == "outpace":
            raise
        raise NotInstalled(package, name) from None
