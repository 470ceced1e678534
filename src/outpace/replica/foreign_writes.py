"""Weights that somebody else writes between two steps: a checkpoint that is loaded late, a clamp, a norm kept in check.

Owns noticing it, by the counters that torch keeps for autograd, and what follows. Other ranks cannot see such writes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from operator import attrgetter

import torch

from outpace.replica.replica import OptimizerReplica

log = logging.getLogger("outpace")

_COUNTER = attrgetter("_version")


class ForeignWrites:
    """Of one replica. Before its first step they are what all ranks begin with; later they can only be pointed out."""

    def __init__(
        self, rank: int, replica: OptimizerReplica, needs_equal_weights: bool, begin_with_own: Callable[[], None]
    ) -> None:
        self._rank, self._replica = rank, replica
        self._begin_with_own = begin_with_own  # makes the written weights what all ranks begin with
        self._can_tell = needs_equal_weights  # weights of one's own may be written; once said is enough
        self.begin()

    def begin(self) -> None:
        """The replica has taken up what all begin with."""
        self._has_begun = False
        self._known = self._counters()

    def renew(self) -> None:
        """What was written until now was no foreign write."""
        self._known = self._counters()

    def heed(self) -> None:
        """Before the replica is used. Waits for nobody."""
        is_beginning, self._has_begun = not self._has_begun, True
        written = [i for i, (now, known) in enumerate(zip(self._counters(), self._known, strict=True)) if now != known]
        if not written:
            return
        if is_beginning:
            self._begin_with_what_was_written()
        elif self._can_tell:
            self._can_tell = False
            log.warning(
                "[rank %d - round %d] %s was written between two steps, and not by this optimizer. The other ranks do "
                "not see that: unless each does the same after the same round, replicas differ from now on. To load "
                "weights while training, load them on all ranks and then call optimizer.load_state_dict() on all",
                *(self._rank, self._replica.version, self._replica.named_parameters()[written[0]][0]),
            )

    def _begin_with_what_was_written(self) -> None:
        written = [p.detach().clone() for p in self._replica.parameters]
        self._begin_with_own()
        self.renew()
        if not all(map(torch.equal, written, self._replica.parameters)):
            log.warning(
                "[rank %d - round %d] the weights that were loaded after DistributedOptimizer was made are not those "
                "of the other ranks, who began with others or are further: this rank has taken up theirs. Load a "
                "checkpoint before the optimizer is made, or with optimizer.load_state_dict() on all ranks",
                *(self._rank, self._replica.version),
            )

    def _counters(self) -> list[int]:
        return list(map(_COUNTER, self._replica.parameters))
