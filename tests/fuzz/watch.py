"""Who watches a run. Owns what checkers may look at, and collects what they say; never changes what happens.

After each event, before anything follows from it, come first the records that checkers share, then the checkers.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from outpace.engines.sums import split_meta
from outpace.engines.virtual.memory import SharedTensors
from outpace.engines.virtual.world import World
from outpace.protocol.events import Arrive, Event, Outcome
from outpace.protocol.ledger import Ledger
from outpace.protocol.round import Contribution
from outpace.protocol.rules import Rules
from outpace.replica.replica import OptimizerReplica
from tests.support.protocol.reference import Reference

Key = tuple[int, int, int]  #: rank, incarnation, step


class Broken(Exception):
    """Promises that did not hold: (the checker's name, in words)."""

    def __init__(self, promises: list[tuple[str, str]]) -> None:
        super().__init__("\n".join(f"{name}: {words}" for name, words in promises))
        self.promises = promises


class Arrival(NamedTuple):
    """A contribution as it was when it arrived."""

    event: Arrive
    row: torch.Tensor  #: a copy of its bytes
    values: list[np.ndarray[Any, Any]]  #: the same as numbers, for each parameter, in double precision
    present: bytes
    hyper: bytes

    @property
    def is_finite(self) -> bool:
        """Whether it may be averaged."""
        return all(bool(np.isfinite(v).all()) for v in self.values)


@dataclass
class Scene:
    """What checkers may look at."""

    rules: Rules
    world: World
    tensors: SharedTensors
    max_grad_norm: float | None
    apply_ns: int
    new_replica: Callable[[], OptimizerReplica]
    reference: Reference
    arrivals: dict[Key, Arrival] = field(default_factory=dict)

    @property
    def ledger(self) -> Ledger:
        """The one of all ranks."""
        return self.world.ledger

    @property
    def now_ns(self) -> int:
        """Simulated."""
        return self.world.clock.now_ns

    def arrival(self, contribution: Contribution) -> Arrival:
        """What was copied when it arrived."""
        return self.arrivals[contribution[:3]]

    def note(self, event: Event, outcome: Outcome) -> None:
        """Keeps the records that checkers share."""
        self.reference.apply(event)
        if isinstance(event, Arrive) and not outcome.is_ignored:
            row, meta = self.tensors.copy_of_row(event.rank, event.row)
            values = [view.double().numpy() for view in self.tensors.vector.views(row)]
            self.arrivals[event.rank, event.incarnation, event.step] = Arrival(event, row, values, *split_meta(meta))


class Watch:
    """Tells all watchers of everything, and raises what the checkers among them found."""

    def __init__(self, scene: Scene, watchers: list[Any]) -> None:
        self.scene = scene
        self._watchers = watchers
        self._complete = 0
        self._sealed = -1
        scene.world.on_event.append(self._on_event)

    def tell(self, what: str, *details: object) -> None:
        """Calls the method of that name of every watcher that has one."""
        _raise(self._say(what, *details))

    def _say(self, what: str, *details: object) -> list[tuple[str, str]]:
        found = []
        for watcher in self._watchers:
            told = getattr(watcher, what, None)
            try:
                if told is not None:
                    told(*details)
            except Broken:
                raise
            except Exception as problem:  # a checker that stumbles over what it sees has found something, too
                found.append((type(watcher).__name__, _words(problem)))
        return found

    def _on_event(self, event: Event, outcome: Outcome) -> None:
        """Whatever is found about one event is raised together: one fault often breaks several promises."""
        ledger = self.scene.ledger
        self.scene.note(event, outcome)
        found = self._say("event", event, outcome)
        if ledger.complete > self._complete:
            self._complete = ledger.complete
            found += self._say("completed", ledger.completed[ledger.complete - 1])
        sealed = ledger.reducing
        if sealed is not None and sealed.number > self._sealed:
            self._sealed = sealed.number
            found += self._say("sealed", sealed)
        _raise(found)


def _raise(found: list[tuple[str, str]]) -> None:
    if found:
        raise Broken(found)


def _words(problem: Exception) -> str:
    """What an assertion says, or the line that says it."""
    frame = traceback.extract_tb(problem.__traceback__)[-1]
    where = f"{frame.line} ({frame.filename}:{frame.lineno})"
    return (str(problem) or where) if isinstance(problem, AssertionError) else f"{problem!r} at {where}"
