"""What a rank and the launcher that watches over it tell each other: `outpace run`, and nobody else so far.

The launcher says through the environment how it launches; a rank leaves in the launcher's store what that must know
to decide whether starting the rank again is of any use. Owns the names of both.
"""

from __future__ import annotations

import os
from typing import Any

from outpace.errors import BelowQuorum, CannotRejoin, OutpaceError, TrainingOver
from outpace.job.environment import joined_store

LIFE = "OUTPACE_LIFE"  #: how often this rank was started, from 1
RESTARTS = "OUTPACE_RESTARTS"  #: set if a rank that dies is started again
MIN_RANKS = "OUTPACE_MIN_RANKS"  #: overrides the script's argument

_FINAL = (BelowQuorum, CannotRejoin, TrainingOver)  #: no new start of the rank can change these


class Report:
    """One life of one rank, as it tells it. Both sides have one."""

    def __init__(self, store: Any, rank: int, life: int) -> None:
        self._store, self._where = store, f"outpace/lives/{rank}/{life}"

    def add(self, what: str) -> None:
        """Counts: a training that this rank "joined", one that it "finished", or "left" when its script ended."""
        self._store.add(f"{self._where}/{what}", 1)

    def count(self, what: str) -> int:
        return int(self._store.add(f"{self._where}/{what}", 0))

    def give_up(self, error: BaseException) -> None:
        self._store.set(f"{self._where}/error", type(error).__name__)

    @property
    def error(self) -> str:
        """The name of an error that no new start can change, or nothing."""
        key = f"{self._where}/error"
        return str(self._store.get(key).decode()) if self._store.check([key]) else ""


def life() -> int:
    """How often this rank was started; 1 also where nobody counts."""
    return int(os.environ.get(LIFE, "1"))


def rules_of_launcher() -> dict[str, Any]:
    wanted: dict[str, Any] = {"restarts": RESTARTS in os.environ}
    least = os.environ.get(MIN_RANKS)
    if least:
        if not least.isdecimal():
            raise OutpaceError(f"{MIN_RANKS}={least!r} must be a whole number of ranks")
        wanted["min_ranks"] = int(least)
    return wanted


def tell(what: str) -> None:
    """Tells the launcher that this rank has joined, finished or left a training, if there is one that listens."""
    report = _own_report()
    if report is not None:
        report.add(what)


def tell_error(error: object) -> None:
    report = _own_report() if isinstance(error, _FINAL) else None
    if report is not None and isinstance(error, BaseException):
        report.give_up(error)


def _own_report() -> Report | None:
    return Report(joined_store(), int(os.environ["RANK"]), life()) if LIFE in os.environ else None
