"""A learning-rate schedule over rounds, not over a rank's own steps. Owns how a torch scheduler is brought along."""

from __future__ import annotations

from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from outpace.optimizer import DistributedOptimizer


class RoundScheduler:
    """Steps a torch scheduler once for each round that this rank has applied.

        scheduler = outpace.RoundScheduler(CosineAnnealingLR(optimizer, T_max=10_000), optimizer)
        for step in optimizer.until(rounds=10_000):
            ...
            optimizer.step()
            scheduler.step()

    Where ranks make different numbers of steps, a schedule over own steps runs ahead on a fast rank, and rounds are
    applied with the learning rate of the rank that made the most steps. Over rounds it is the same on all ranks. Where
    weights are averaged, a rank's own steps are its rounds, and nothing changes.

    scheduler: made for the `DistributedOptimizer` or for its inner one; its lengths are in rounds.
    """

    def __init__(self, scheduler: LRScheduler, optimizer: DistributedOptimizer) -> None:
        self._scheduler, self._optimizer = scheduler, optimizer
        self._applied = 0
        self.step()  # of a rank that was started again, to where the others are

    def step(self) -> None:
        """Brings the schedule to this rank's version. To be called after `optimizer.step()`; waits for nobody."""
        version = self._optimizer.stats.version
        for _ in range(self._applied, version):
            self._scheduler.step()
        self._applied = version

    def get_last_lr(self) -> list[float]:
        return list(map(float, self._scheduler.get_last_lr()))

    def state_dict(self) -> dict[str, Any]:
        return {"scheduler": self._scheduler.state_dict(), "applied": self._applied}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """A checkpoint that all ranks go on from. Load the optimizer's state first."""
        self._scheduler.load_state_dict(state["scheduler"])
        self._applied = state["applied"]
