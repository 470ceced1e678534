"""Hugging Face's Accelerate and Trainer without waiting for the slowest rank: `OutpaceAccelerator`, `OutpaceTrainer`.

Both keep a process group of torch.distributed for what they gather and broadcast. What is done otherwise here: no
model is put into DDP, every optimizer is wrapped, all ranks meet before weights are evaluated or saved, and defaults
that make everybody wait in every step are switched off.
"""

from __future__ import annotations

import logging
from typing import Any

from torch.nn import Module
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from outpace.errors import OutpaceError, extra
from outpace.frameworks import draws_from_pool, model_of, refuse_second_life, sort_options
from outpace.optimizer import DistributedOptimizer

with extra("huggingface"):
    from accelerate import Accelerator
    from accelerate.data_loader import prepare_data_loader
    from accelerate.utils import DistributedType
    from transformers import Trainer

log = logging.getLogger("outpace")

_SHARDING = (DistributedType.FSDP, DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM)

refuse_second_life("Hugging Face's Accelerate")  # here: its group is made before anything of ours is


class OutpaceAccelerator(Accelerator):
    """An `accelerate.Accelerator` whose optimizers wait for nobody.

        accelerator = OutpaceAccelerator("eager-majority")

    Takes the options of `DistributedOptimizer` beside those of `Accelerator`. With `max_grad_norm=`, it is the averaged
    gradient that is clipped, as under DDP, and `accelerator.clip_grad_norm_` only measures. `wait_for_everyone()` and
    `save_state()` bring all ranks to one version; `end_training()` is the end on all of them: call it after the loop.
    """

    def __init__(self, strategy: Any = None, **options: Any) -> None:
        ours, theirs = sort_options(options, strategy)
        super().__init__(**theirs)
        self.begin(ours)

    def begin(self, ours: dict[str, Any]) -> None:
        """With these options of `DistributedOptimizer`."""
        if self.distributed_type in _SHARDING:
            raise OutpaceError(
                f"{self.distributed_type.value} spreads one model over several ranks, and outpace averages models that "
                "each rank has whole: leave it out, here and in `accelerate config`"
            )
        self._ours = ours
        self._known: list[Module] = []
        if self.dataloader_config.dispatch_batches:
            log.warning(
                "dispatch_batches=True: rank 0 reads every batch and hands out its parts, so that all ranks wait for "
                "each other in every step. Leave it away"
            )
        self.dataloader_config.dispatch_batches = bool(self.dataloader_config.dispatch_batches)  # None may mean True

    def prepare(self, *objects: Any, **options: Any) -> Any:
        self._known += [each for each in objects if isinstance(each, Module)]
        return super().prepare(*objects, **options)

    def prepare_model(self, model: Module, device_placement: bool | None = None, evaluation_mode: bool = False) -> Any:
        """With autocast and all else, but DDP."""
        self._known.append(model)
        return super().prepare_model(model, device_placement, evaluation_mode=True)

    def prepare_data_loader(
        self, data_loader: DataLoader[Any], device_placement: bool | None = None, slice_fn_for_dispatch: Any = None
    ) -> Any:
        """One whose ranks draw from a pool is not split among them once more."""
        if not draws_from_pool(data_loader) or getattr(data_loader, "_is_accelerate_prepared", False):
            return super().prepare_data_loader(data_loader, device_placement, slice_fn_for_dispatch)
        moves = self.device_placement if device_placement is None else device_placement
        prepared = prepare_data_loader(data_loader, self.device, num_processes=1, process_index=0, put_on_device=moves)
        self._dataloaders.append(prepared)
        return prepared

    def prepare_optimizer(self, optimizer: Optimizer, device_placement: bool | None = None) -> Any:
        if not getattr(optimizer, "_is_accelerate_prepared", False):
            optimizer = DistributedOptimizer(optimizer, model=model_of(optimizer, self._known), **self._ours)
        return super().prepare_optimizer(optimizer, device_placement)

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> Any:
        """Of this rank's own gradients, unless the average is clipped."""
        is_clipped_later = self._ours.get("max_grad_norm") is not None
        return super().clip_grad_norm_(parameters, float("inf") if is_clipped_later else max_norm, norm_type)

    def wait_for_everyone(self) -> None:
        self.synchronize()
        super().wait_for_everyone()

    def save_state(self, *arguments: Any, **options: Any) -> Any:
        self.synchronize()
        return super().save_state(*arguments, **options)

    def end_training(self) -> None:
        self.finish()
        super().end_training()

    def synchronize(self) -> None:
        """Brings all ranks to one version, unless training is over."""
        for optimizer in self._unfinished():
            optimizer.synchronize()

    def finish(self) -> None:
        for optimizer in self._unfinished():
            optimizer.finish()

    def _unfinished(self) -> list[DistributedOptimizer]:
        made = [each.optimizer for each in self._optimizers]
        return [each for each in made if isinstance(each, DistributedOptimizer) and not each.is_finished]


class OutpaceMixin:
    """Goes before any class that is a `transformers.Trainer`: `class MyTrainer(OutpaceMixin, Seq2SeqTrainer): pass`.

    Takes the options of `DistributedOptimizer` beside the Trainer's own. The Trainer's `max_grad_norm` clips the
    averaged gradient, as under DDP. Where the Trainer counts tokens to weigh ranks by them
    (`average_tokens_across_devices`), which gathers in every step, they are given to the optimizer instead, for
    `strategy="eager-majority:normalise=samples"` and the like.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._ours, theirs = sort_options(options)
        self._tokens: float | None = None  # that the losses of the next step are divided by
        super().__init__(*arguments, **theirs)

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()  # type: ignore[misc]
        args: Any = self.args  # type: ignore[attr-defined]
        self.accelerator: Any
        self.accelerator.__class__ = OutpaceAccelerator  # the Trainer makes its own, and lets nobody choose the class
        self.accelerator.begin(({"max_grad_norm": args.max_grad_norm} if args.max_grad_norm > 0 else {}) | self._ours)
        args.average_tokens_across_devices = False
        if args.logging_steps == 1 or args.include_num_input_tokens_seen != "no":
            log.warning(
                "the Trainer gathers from all ranks whenever it logs, and for include_num_input_tokens_seen: with "
                "logging_steps=%s everybody waits for the slowest rank there. 50 and more cost little",
                args.logging_steps,
            )

    def get_batch_samples(self, *arguments: Any, **options: Any) -> Any:
        samples, tokens = super().get_batch_samples(*arguments, **options)  # type: ignore[misc]
        self._tokens = None if tokens is None else float(tokens)
        return samples, tokens

    def _prepare_for_training(self, *arguments: Any, **options: Any) -> Any:
        prepared = super()._prepare_for_training(*arguments, **options)  # type: ignore[misc]
        self.optimizer: Any
        self.optimizer.optimizer.register_step_pre_hook(self._with_tokens)
        return prepared

    def _with_tokens(self, _: Optimizer, arguments: Any, options: dict[str, Any]) -> Any:
        return arguments, options | {"samples": self._tokens or None}

    def evaluate(self, *arguments: Any, **options: Any) -> Any:
        self.accelerator.synchronize()
        return super().evaluate(*arguments, **options)  # type: ignore[misc]

    def _save_checkpoint(self, *arguments: Any, **options: Any) -> None:
        self.accelerator.synchronize()
        super()._save_checkpoint(*arguments, **options)  # type: ignore[misc]

    def _finalize_training(self, *arguments: Any, **options: Any) -> Any:
        """Before the best model is loaded: what others still contribute belongs to the last one."""
        self.accelerator.finish()
        self.optimizer = self.optimizer.optimizer.inner  # another train() wraps it anew
        return super()._finalize_training(*arguments, **options)  # type: ignore[misc]


class OutpaceTrainer(OutpaceMixin, Trainer):
    """A `transformers.Trainer` that does not wait for the slowest rank.

    trainer = OutpaceTrainer(model=model, args=args, train_dataset=data, strategy="eager-majority")
    """
