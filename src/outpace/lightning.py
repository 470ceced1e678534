"""Lightning's Trainer without waiting for the slowest rank: `Trainer(strategy="outpace")`.

Lightning's own DDP strategy launches the ranks, injects samplers, broadcasts and reduces. What is done otherwise here:
no model is wrapped, every optimizer is, all ranks meet before weights are validated or saved, and a sampler that all
ranks draw from stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from outpace.errors import OutpaceError, extra
from outpace.frameworks import (
    draws_from_pool,
    numbered,
    refuse_options_of_ddp,
    refuse_second_life,
    sort_options,
)
from outpace.optimizer import DistributedOptimizer

with extra("lightning"):
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry
    from lightning.pytorch.utilities.model_helpers import is_overridden
if TYPE_CHECKING:
    import lightning.pytorch as pl


class OutpaceStrategy(DDPStrategy):
    """A strategy for `lightning.pytorch.Trainer`, also by name once this module is imported.

        trainer = Trainer(strategy="outpace", devices=4)
        trainer = Trainer(strategy=OutpaceStrategy("eager-majority", log_dir="runs/x"), devices=4)

    Takes the options of `DistributedOptimizer`, and of Lightning's `DDPStrategy` those that are not DDP's own
    (`start_method`, `timeout`, `process_group_backend`, ...). A `gradient_clip_val` of the Trainer becomes
    `max_grad_norm`: as under DDP, it is the averaged gradient that is clipped.
    """

    optimizers: list[Any]

    def __init__(self, strategy: Any = None, **options: Any) -> None:
        self._ours, lightnings = sort_options(options, strategy)
        super().__init__(**lightnings)
        refuse_options_of_ddp(self._ddp_kwargs)
        self._clipped: float | None = None  # the Trainer's gradient_clip_val, while it is ours

    # -- beginning -----------------------------------------------------------------------------------------------------

    def setup_environment(self) -> None:
        refuse_second_life("Lightning")
        super().setup_environment()

    def configure_ddp(self) -> None:
        """The model stays as it is."""

    def setup_optimizers(self, trainer: pl.Trainer) -> None:
        super().setup_optimizers(trainer)
        options = self._clipping(trainer) | self._ours
        options_of_each = numbered(options, len(self.optimizers))
        pairs = zip(self.optimizers, options_of_each, strict=True)
        wrapped = [DistributedOptimizer(each, model=self.model, **own) for each, own in pairs]
        for each in wrapped:
            each.optimizer = each.inner  # type: ignore[attr-defined]  # where LearningRateMonitor looks for its name
        self.optimizers = wrapped
        # Rank 0 would tell all in every batch whether it was asked to end. Launchers tell each rank.
        trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = _tell_nobody

    # -- data ----------------------------------------------------------------------------------------------------------

    def setup(self, trainer: pl.Trainer) -> None:
        data: Any = trainer._data_connector
        needs_one = type(data)._requires_distributed_sampler
        data._requires_distributed_sampler = lambda loader: not draws_from_pool(loader) and needs_one(data, loader)
        super().setup(trainer)

    def process_dataloader(self, dataloader: object) -> object:
        if not draws_from_pool(dataloader):
            return dataloader
        trainer = self.lightning_module.trainer
        keeps = (c for c in trainer.checkpoint_callbacks if isinstance(c, ModelCheckpoint))
        counts = any(each._every_n_train_steps or each._train_time_interval for each in keeps)
        if counts or trainer.val_check_interval != 1.0:
            raise OutpaceError(
                "ranks that draw from one pool make different numbers of steps, so that Lightning would validate or "
                "save on some of them alone, and wait for the others: leave out val_check_interval, "
                "every_n_train_steps and train_time_interval, and both happen after each epoch"
            )
        return _Uncounted(dataloader)

    def _clipping(self, trainer: pl.Trainer) -> dict[str, Any]:
        """Lightning clips what a rank has computed, which under DDP is averaged already."""
        module = self.lightning_module
        is_lightnings = module.automatic_optimization and not is_overridden("configure_gradient_clipping", module)
        if not is_lightnings or not trainer.gradient_clip_val or trainer.gradient_clip_algorithm not in (None, "norm"):
            return {}
        self._clipped, trainer.gradient_clip_val = trainer.gradient_clip_val, None
        return {"max_grad_norm": self._clipped}

    # -- all ranks meet ------------------------------------------------------------------------------------------------

    def on_validation_start(self) -> None:
        if not self.lightning_module.trainer.sanity_checking:
            self._synchronize()

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """For a checkpoint; the optimizers' states are asked for next. Waits for all ranks, unless training is over."""
        self._synchronize()
        return super().lightning_module_state_dict()  # type: ignore[no-any-return]

    def _synchronize(self) -> None:
        for optimizer in self._unfinished():
            optimizer.synchronize()

    # -- end -----------------------------------------------------------------------------------------------------------

    def on_train_end(self) -> None:
        for optimizer in self._unfinished():
            optimizer.finish()

    def on_exception(self, exception: BaseException) -> None:
        super().on_exception(exception)
        for optimizer in self._unfinished():
            optimizer.__exit__(type(exception))

    def teardown(self) -> None:
        if self._clipped is not None:
            self.lightning_module.trainer.gradient_clip_val, self._clipped = self._clipped, None
        super().teardown()

    def _unfinished(self) -> list[DistributedOptimizer]:
        return [each for each in self.optimizers if isinstance(each, DistributedOptimizer) and not each.is_finished]

    @classmethod
    def register_strategies(cls, strategy_registry: Any) -> None:
        strategy_registry.register("outpace", cls, description="does not wait for the slowest rank")


class _Uncounted:
    """A loader without its length, which Lightning holds every rank to: a fast one draws more, a slow one fewer."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._loader, name)


def _tell_nobody() -> None:
    """Instead of a collective that waits for the slowest rank."""


OutpaceStrategy.register_strategies(StrategyRegistry)
