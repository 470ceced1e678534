"""What a workload can be trained with: torch's own DDP, or one of outpace's strategies. Owns their differences only."""

from __future__ import annotations

import os
import sys
from typing import Protocol

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from outpace.optimizer import DistributedOptimizer
from outpace.strategies import strategy

DDP = "ddp"  #: the name of the system that outpace is compared with


class System(Protocol):
    """One way to train data-parallel. Made in each rank's own process."""

    def wrap(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """What the training loop uses instead. Blocks until every rank is there."""

    def finish(self) -> None:
        """After the last step. Returns when this rank's weights are final."""

    def lateness(self) -> tuple[float, int]:
        """Share of the applied contributions that were late, and how many were dropped, over all ranks."""

    def close(self) -> None:
        """Gives everything back."""


class TorchDDP:
    """`DistributedDataParallel` on Gloo, as it comes."""

    def wrap(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Starts the process group and wraps the model."""
        if sys.platform.startswith("linux"):
            # All ranks are here. Without this Gloo looks for the host's own name, which need not resolve.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo")
        wrapped = DistributedDataParallel(model)
        dist.barrier()
        return wrapped, optimizer

    def finish(self) -> None:
        """Nothing to do: the ranks are in step."""

    def lateness(self) -> tuple[float, int]:
        """Nobody is late where everybody is waited for."""
        return 0.0, 0

    def close(self) -> None:
        """Leaves the group to the end of the process: destroyed while the wrapped model lives, Gloo may hang."""
        dist.barrier()


class Outpace:
    """outpace with one of its strategies."""

    def __init__(self, name: str) -> None:
        self._strategy = strategy(name)
        self._optimizer: DistributedOptimizer | None = None

    def wrap(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Wraps the optimizer."""
        self._optimizer = DistributedOptimizer(optimizer, self._strategy, model)
        return model, self._optimizer

    def finish(self) -> None:
        """Waits for what is still on its way."""
        self._wrapped.finish()

    def lateness(self) -> tuple[float, int]:
        """From the ledger, which knows all ranks."""
        stats = self._wrapped.stats
        return stats.late_share, sum(rank.dropped for rank in stats.ranks)

    def close(self) -> None:
        """Nothing left to do after `finish`."""

    @property
    def _wrapped(self) -> DistributedOptimizer:
        assert self._optimizer is not None, "wrap() comes first"
        return self._optimizer


def system(name: str) -> System:
    """The system of this name. Raises `UnknownName` or `InvalidRules` as strategies do."""
    return TorchDDP() if name == DDP else Outpace(name)


def check_system(name: str, ranks: int) -> None:
    """Raises what is wrong with this name among so many ranks, before any process is started."""
    if name != DDP:
        strategy(name).rules(ranks)
