"""What the integrations of training frameworks share. Knows none of them."""

from __future__ import annotations

from collections.abc import Iterable
from inspect import signature
from pathlib import Path
from typing import Any

from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from outpace.data import SharedStream
from outpace.data.shared import FromPool
from outpace.errors import CannotRejoin
from outpace.job.environment import life
from outpace.optimizer import DistributedOptimizer

_OURS = set(signature(DistributedOptimizer).parameters) - {"optimizer", "model"}
_OF_DDP = set(signature(DistributedDataParallel).parameters)


def sort_options(options: dict[str, Any], strategy: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Those of `DistributedOptimizer`, among them the strategy if one was given, and those of the framework."""
    ours = {name: value for name, value in options.items() if name in _OURS}
    if strategy is not None:
        ours["strategy"] = strategy
    return ours, {name: value for name, value in options.items() if name not in _OURS}


def refuse_options_of_ddp(options: Iterable[str]) -> None:
    """Lightning's strategies hand DDP whatever they do not know themselves."""
    for name in options:
        raise TypeError(
            f"OutpaceStrategy has no option {name!r}: no model is put into DDP"
            if name in _OF_DDP
            else f"OutpaceStrategy has no option {name!r}; beside Lightning's own it has {', '.join(sorted(_OURS))}"
        )


def numbered(options: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """For so many optimizers: several of them record to directories of their own."""
    if count == 1 or options.get("log_dir") is None:
        return [options] * count
    return [options | {"log_dir": Path(options["log_dir"], f"optimizer-{index}")} for index in range(count)]


def model_of(optimizer: Optimizer, modules: Iterable[Module]) -> Module | None:
    """The module that has all that this optimizer trains; None if several have a part of it."""
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return next((module for module in modules if trained <= {id(p) for p in module.parameters()}), None)


def draws_from_pool(loader: Any) -> bool:
    """Whether a loader's samples are dealt out by ours: no framework may split them once more."""
    parts = (getattr(loader, name, None) for name in ("sampler", "batch_sampler", "dataset"))
    return any(isinstance(part, FromPool | SharedStream) for part in parts)


def refuse_second_life(framework: str) -> None:
    """Raises in a rank that `outpace run` has started again, which would wait for the others' group for ever."""
    if life() > 1:
        raise CannotRejoin(
            f"this rank was started again, and {framework} keeps a process group of torch.distributed, which takes "
            "nobody back. Start all ranks again from the last checkpoint (torchrun --max-restarts does), or train in "
            "a loop of your own, where a rank can come back"
        )
