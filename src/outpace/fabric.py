"""Lightning Fabric without waiting for the slowest rank: `Fabric(strategy=OutpaceStrategy())`.

Fabric's own DDP strategy launches the ranks, injects samplers, broadcasts and reduces. What is done otherwise here: no
model is wrapped, every optimizer is, and all ranks meet before a checkpoint is saved.
"""

from __future__ import annotations

import atexit
import sys
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

from torch.nn import Module
from torch.optim import Optimizer

from outpace.errors import OutpaceError, extra
from outpace.frameworks import (
    draws_from_pool,
    model_of,
    refuse_options_of_ddp,
    refuse_second_life,
    sort_options,
)
from outpace.optimizer import DistributedOptimizer

with extra("lightning"):
    from lightning.fabric.strategies import STRATEGY_REGISTRY, DDPStrategy
    from lightning.fabric.strategies.strategy import _BackwardSyncControl


class OutpaceStrategy(DDPStrategy):
    """A strategy for `lightning.fabric.Fabric`, also by the name "outpace" once this module is imported.

        fabric = Fabric(strategy=OutpaceStrategy("eager-majority"), devices=4)

    Takes the options of `DistributedOptimizer`, and of Fabric's `DDPStrategy` those that are not DDP's own. What
    `fabric.setup` returns has the calls of `DistributedOptimizer`: `optimizer.synchronize()` before an evaluation,
    `optimizer.finish()` after the loop. A script that ends without the latter finishes then.
    """

    def __init__(self, strategy: Any = None, **options: Any) -> None:
        self._ours, fabrics = sort_options(options, strategy)
        super().__init__(**fabrics)
        refuse_options_of_ddp(self._ddp_kwargs)
        self._backward_sync_control = _NothingToBlock()
        self._modules: list[Module] = []
        self._optimizers: list[DistributedOptimizer] = []

    def setup_environment(self) -> None:
        refuse_second_life("Fabric")
        super().setup_environment()

    def setup_module(self, module: Module) -> Module:
        """The model stays as it is."""
        self._modules.append(module)
        return module

    def setup_optimizer(self, optimizer: Optimizer) -> Optimizer:
        wrapped = DistributedOptimizer(optimizer, model=model_of(optimizer, self._modules), **self._ours)
        if not self._optimizers:
            atexit.register(self._finish)
        self._optimizers.append(wrapped)
        return wrapped

    def process_dataloader(self, dataloader: Any) -> Any:
        """Fabric may have put a `DistributedSampler` of its own around the loader's."""
        inside = getattr(getattr(dataloader.sampler, "dataset", None), "_sampler", None)
        if inside is not None and draws_from_pool(SimpleNamespace(sampler=inside)):
            raise OutpaceError(
                f"{type(inside).__name__} deals out samples by itself, and Fabric would split them once more: call "
                "fabric.setup_dataloaders(loader, use_distributed_sampler=False)"
            )
        return dataloader

    def save_checkpoint(self, *arguments: Any, **options: Any) -> None:
        """Waits for all ranks, unless training is over: what is saved is one version."""
        for optimizer in self._unfinished():
            optimizer.synchronize()
        super().save_checkpoint(*arguments, **options)

    def _finish(self) -> None:
        if getattr(sys, "last_value", None) is None:
            for optimizer in self._unfinished():
                optimizer.finish()

    def _unfinished(self) -> list[DistributedOptimizer]:
        return [each for each in self._optimizers if not each.is_finished]

    @classmethod
    def register_strategies(cls, strategy_registry: Any) -> None:
        strategy_registry.register("outpace", cls, description="does not wait for the slowest rank")


class _NothingToBlock(_BackwardSyncControl):
    """`backward()` meets nobody, so `fabric.no_backward_sync` has nothing to do."""

    def no_backward_sync(self, module: Module, enabled: bool) -> AbstractContextManager[None]:
        return nullcontext()


OutpaceStrategy.register_strategies(STRATEGY_REGISTRY)
