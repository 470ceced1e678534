"""The life of an engine in this process: how it opens, what a checkpoint stores of it, and how it ends with the script.

Owns the choice of the engine, the format of a rank's position, and the end of a process that never called `finish()`.
After a normal end the rank leaves the quorum, so that nobody takes it for dead. After an exception it does not, and the
others learn that it died.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import secrets
import sys
import weakref
from dataclasses import replace
from typing import Any

from outpace.engines.arena.open import open_local
from outpace.engines.cluster.open import open_cluster
from outpace.engines.engine import Engine, Opened
from outpace.engines.siblings import Siblings
from outpace.engines.virtual.threads import simulated_rank
from outpace.errors import InvalidRules, OutpaceError
from outpace.job.environment import Place, gather, rules_of_launcher, tell_launcher, tell_launcher_of
from outpace.observe import recorder
from outpace.replica.replica import OptimizerReplica
from outpace.spec import is_number
from outpace.strategies import Strategy

log = logging.getLogger("outpace")

ENGINES = ("auto", "local", "cluster")

_open: weakref.WeakSet[Engine] = weakref.WeakSet()
_awaited: set[Engine] = set()  # kept alive even if the script drops its optimizer, because other ranks wait for them
siblings = Siblings()  #: those of this process


def open_engine(
    engine: str,
    place: Place,
    replica: OptimizerReplica,
    chosen: Strategy,
    max_grad_norm: float | None,
    timeout_s: float,
) -> Opened:
    """The engine of this process: simulated, for one machine or for several. Blocks until every rank has joined."""
    if engine not in ENGINES:
        raise InvalidRules(f"engine={engine!r} is unknown; choose one of {', '.join(ENGINES)}")
    if not is_number(timeout_s) or not timeout_s > 0:
        raise InvalidRules(f"timeout_s={timeout_s!r} must be a number of seconds, greater than 0")
    rules = replace(chosen.rules(place.world), strategy=repr(chosen))
    max_grad_norm = max_grad_norm if chosen.sends_gradients else None  # otherwise each rank clips its own
    simulated = simulated_rank()
    if simulated is not None:
        return simulated.open(replica, rules, max_grad_norm)
    rules = replace(rules, **rules_of_launcher())
    with siblings.opening():
        gathering = gather(place, timeout_s)
        opening = open_local if _is_local(engine, gathering.place) else open_cluster
        opened = watch(opening(replica, rules, gathering, max_grad_norm, timeout_s))
    tell_launcher("joined")
    return opened


def _is_local(engine: str, place: Place) -> bool:
    if engine == "local" and place.local_world != place.world:
        raise OutpaceError(
            f"this job has {place.world} ranks, {place.local_world} of them on this machine, but the local engine "
            'works on one machine only. Use engine="auto"'
        )
    return place.is_one_host if engine == "auto" else engine == "local"


def watch(opened: Opened) -> Opened:
    """Ends this engine with the process, and introduces it to the other engines of this process."""
    engine = opened.engine
    _open.add(engine)
    if engine.world == 1:  # it never waits
        return opened
    _awaited.add(engine)
    return siblings.add(opened)


def forget(engine: Engine) -> None:
    _open.discard(engine)
    _awaited.discard(engine)
    engine.siblings.remove(engine)


def _forget_all() -> None:
    global siblings
    _open.clear()
    _awaited.clear()
    siblings = Siblings()


os.register_at_fork(after_in_child=_forget_all)  # a forked child that exits must not speak for its parent


@atexit.register
def end_all() -> None:
    """Leaves all rounds; runs at exit, also in processes that skip `atexit`."""
    failed = getattr(sys, "last_value", None) is not None
    if failed:
        tell_launcher_of(sys.last_value)
    for engine in list(_open):
        if not failed:
            with contextlib.suppress(OutpaceError):  # if the others cannot be told, they are gone themselves
                _warn_unfinished(engine)
                engine.leave(for_good=True)
                tell_launcher("left")
        engine.close()
        forget(engine)
    recorder.close_all()


def _warn_unfinished(engine: Engine) -> None:
    """Warns of what `finish()` would have done. With a single rank there is nothing."""
    if engine.world == 1:
        return
    engine.look()
    ledger, rank = engine.ledger, engine.rank
    others = [m.rank for m in ledger.members.unfinished() if m.rank != rank]
    undone = [
        (ledger.complete - engine.version, "rounds that it has not applied"),
        (len(ledger.pending(rank)), "of its contributions that are in no round yet"),
        (len(others), f"other ranks that are still training ({others})"),
    ]
    left = ", ".join(f"{count} {what}" for count, what in undone if count > 0) or "the last average of buffers"
    log.warning(
        "[rank %d - round %d] this script ended without optimizer.finish(), and leaves behind: %s. So its weights, and "
        "any it has saved, may differ from the other ranks'. Call finish() after the loop, or make the optimizer in a "
        "`with` statement",
        *(rank, ledger.round, left),
    )


class Position:
    """One rank's position for a checkpoint: its rounds and steps, and what only this rank has."""

    def __init__(self, strategy: Strategy, opened: Opened, replica: OptimizerReplica) -> None:
        self._strategy, self._engine, self._replica = strategy, opened.engine, replica
        self._drive = opened.drive
        self._mark = secrets.token_hex(8)  # of this life of this rank

    def state(self, steps: int) -> dict[str, Any]:
        """A copy of the position; communicates with nobody."""
        return {
            "format": 1,
            "rank": self._engine.rank,
            "life": self._mark,
            "strategy": repr(self._strategy),
            "replica": type(self._replica).__name__,
            "version": self._replica.version,
            "steps": steps,
            "hyper": self._replica.hyper.decode(),
            "pending": self._engine.pending(),
            "extra": self._replica.extra_state(),
        }

    def is_of_this_moment(self, position: dict[str, Any] | None) -> bool:
        """Whether a position was made here, and no round was applied since."""
        found = {} if position is None else position
        return (found.get("life"), found.get("version")) == (self._mark, self._replica.version)

    def restore(self, position: dict[str, Any]) -> None:
        """Restores a position. Pending work is contributed again only by its own rank, even if all load one file."""
        is_own, extra, pending = position["rank"] == self._engine.rank, position["extra"], position["pending"]
        if not self._is_of_this_kind(position):
            log.warning(
                "[rank %d] the checkpoint was saved with %s, but this is %s: weights and optimizer state continue from "
                "it; the strategy's own state starts afresh, and %d pending contributions are discarded",
                *(self._engine.rank, position["strategy"], self._strategy, len(pending)),
            )
            return
        for contribution in pending if is_own else []:
            self._drive(self._engine.give_again, contribution)
        self._replica.load_extra_state(extra if is_own else {**extra, "codec": {}})

    def _is_of_this_kind(self, position: dict[str, Any]) -> bool:
        """Whether rows and extra state mean the same here as where they were saved."""
        mine = type(self._replica).__name__
        is_same: bool = position["extra"].keys() == self._replica.extra_state().keys()
        return is_same and position.get("replica", mine) == mine
