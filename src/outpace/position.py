"""Where one rank stands, for a checkpoint: its rounds and steps, and what only this rank has. Owns its format."""

from __future__ import annotations

import logging
import secrets
from typing import Any

from outpace.engines.engine import Opened
from outpace.replica.replica import OptimizerReplica
from outpace.strategies import Strategy

log = logging.getLogger("outpace")


class Position:
    def __init__(self, strategy: Strategy, opened: Opened, replica: OptimizerReplica) -> None:
        self._strategy, self._engine, self._replica = strategy, opened.engine, replica
        self._drive = opened.drive
        self._mark = secrets.token_hex(8)  # of this life of this rank

    def state(self, steps: int) -> dict[str, Any]:
        """Copies; nobody is asked."""
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
        """Whether it was made here, and not a round was applied since."""
        found = {} if position is None else position
        return (found.get("life"), found.get("version")) == (self._mark, self._replica.version)

    def take_up(self, position: dict[str, Any]) -> None:
        """What a rank has still to give is given again by that rank alone, also where all load one rank's file."""
        is_own, extra, pending = position["rank"] == self._engine.rank, position["extra"], position["pending"]
        if not self._is_of_this_kind(position):
            log.warning(
                "[rank %d] the checkpoint was saved with %s, and this is %s: weights and optimizer state go on from "
                "it; what only that strategy keeps begins anew, and %d contributions that were pending are left out",
                *(self._engine.rank, position["strategy"], self._strategy, len(pending)),
            )
            return
        for contribution in pending if is_own else []:
            self._drive(self._engine.give_again, contribution)
        self._replica.load_extra_state(extra if is_own else {**extra, "codec": {}})

    def _is_of_this_kind(self, position: dict[str, Any]) -> bool:
        """Whether rows and extra state mean here what they meant where they were saved."""
        mine = type(self._replica).__name__
        is_same: bool = position["extra"].keys() == self._replica.extra_state().keys()
        return is_same and position.get("replica", mine) == mine
