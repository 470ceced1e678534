"""Errors, each named after its situation. A message says what happened, to whom, and what you can do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class OutpaceError(RuntimeError):
    """Base of every error outpace raises on its own account."""


class ModelMismatch(OutpaceError):
    """A rank brought another model, optimizer or strategy than the rank that opened the arena."""


class ArenaFull(OutpaceError):
    """The shared memory that training needs is not there."""


class ArenaInvalid(OutpaceError):
    """A file that should be an arena of this job is something else, or damaged."""


class BelowQuorum(OutpaceError):
    """Fewer ranks live than `min_ranks`, so no further round may be committed."""


class TrainingOver(OutpaceError):
    """A rank was started again when all others had finished the training that it wants to join."""


class StoreLost(OutpaceError):
    """The store that joins the hosts is gone, or cannot be reached. Restart from the last checkpoint."""


class CannotRejoin(OutpaceError):
    """A rank was started again, and something beside outpace takes nobody back. Restart from the last checkpoint."""


class TimedOut(OutpaceError):
    """A wait passed its bound. Names the ranks that were waited for."""


class RankFailed(OutpaceError):
    """A rank started by `spawn` raised; carries that rank's own traceback."""

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
    """What should be a recorded trace is something else, or nothing of it can be read."""


class InvalidRules(OutpaceError, ValueError):
    """A strategy was given a value it cannot work with."""


class UnknownName(OutpaceError, ValueError):
    """No strategy, imbalance or workload has this name."""


class NotInstalled(OutpaceError, ModuleNotFoundError):
    """A package that only some need is missing. The message has the command that installs it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed: pip install 'outpace[{extra}]'")
        self.name = package


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Around imports of packages that come with `pip install outpace[NAME]`: says so where they are missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or name).partition(".")[0]
        if package == "outpace":
            raise
        raise NotInstalled(package, name) from None
