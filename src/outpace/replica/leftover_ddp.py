"""A model that torch's DistributedDataParallel averages, too. Owns finding it, and the sentence that helps.

Under DDP every `backward()` waits for the slowest rank, so that there is nothing left to gain, and what is averaged was
averaged before. Frameworks wrap models by themselves, after the optimizer was made and out of the script's sight; DDP's
hooks are in C++ and cannot be seen on parameters. So it is the DDP objects that are looked for, among all there are.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from outpace.errors import OutpaceError


def refuse_ddp(model: torch.nn.Module | None, parameters: Iterable[torch.Tensor]) -> None:
    """Raises if DDP has the model or one of these parameters. Looks at every object: not for every step."""
    if isinstance(model, DistributedDataParallel):
        raise _refusal("the model is wrapped in")
    if not dist.is_available() or not dist.is_initialized():
        return  # DDP needs a group
    ours = {id(p) for p in parameters}
    if any(_has(ddp, ours) for ddp in _living()):
        gc.collect()  # one that the script has let go of may lie in a cycle, and averages nothing
        if any(_has(ddp, ours) for ddp in _living()):
            raise _refusal("the optimizer's parameters belong to a model in")


def _living() -> Iterator[DistributedDataParallel]:
    return (each for each in gc.get_objects() if issubclass(type(each), DistributedDataParallel))


def _has(ddp: DistributedDataParallel, ours: set[int]) -> bool:
    return any(id(p) in ours for p in ddp.parameters())


def _refusal(what: str) -> OutpaceError:
    return OutpaceError(
        f"{what} torch's DistributedDataParallel, which averages gradients in backward() and waits for the slowest "
        "rank there: outpace would gain nothing. Train the plain model (`model.module`, or leave "
        "DistributedDataParallel away; in a framework, choose a strategy that does not wrap it) and let outpace average"
    )
