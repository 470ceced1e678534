"""Which optimizer trains a parameter or shares it, and who else writes to it during training.

Two optimizers have versions of their own. A parameter stepped by both would have different bits on every rank, and one
stepped only by the other must not be overwritten from this one's snapshots.

Writes from outside - a checkpoint loaded late, a clamp, a norm constraint - are noticed by the version counters that
torch keeps for autograd. Other ranks cannot see such writes.

Under DDP every `backward()` waits for the slowest rank, so outpace could gain nothing, and gradients would be averaged
twice. Frameworks wrap models after the optimizer was made and out of the script's sight, and DDP's hooks are in C++ and
invisible on parameters. So this searches all objects for DDP wrappers.
"""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.weak import WeakTensorKeyDictionary

from outpace.errors import OutpaceError

if TYPE_CHECKING:
    from outpace.replica.replica import OptimizerReplica

log = logging.getLogger("outpace")


class Owner(Protocol):
    """What steps parameters."""

    lost: torch.Tensor | None  #: a parameter of its own that a newer owner has claimed


_owners = WeakTensorKeyDictionary()  # parameter -> weak reference to its owner, which steps it
_sharers = WeakTensorKeyDictionary()  # parameter -> weak reference to the first owner to share it without stepping it


def claim(owner: Owner, trained: Iterable[torch.Tensor], others: Iterable[torch.Tensor]) -> None:
    """Makes this the owner of `trained` for as long as it lives, and tells an older owner what it has lost.

    It also becomes the sharer of those `others` that have none; newer owners then leave them alone.
    """
    for parameter in trained:
        before = owner_of(parameter)
        if before is not None and before is not owner:
            before.lost = parameter
        _owners[parameter] = weakref.ref(owner)
    for parameter in others:
        if _found(_sharers, parameter) is None:
            _sharers[parameter] = weakref.ref(owner)


def release(owner: Owner, parameters: Iterable[torch.Tensor]) -> None:
    for parameter in parameters:
        for which in (_owners, _sharers):
            if _found(which, parameter) is owner:
                del which[parameter]


def owner_of(parameter: torch.Tensor) -> Owner | None:
    """The owner that steps a parameter; None if no `DistributedOptimizer` does."""
    return _found(_owners, parameter)


def shares(owner: Owner, parameter: torch.Tensor) -> bool:
    """Whether nobody steps a parameter, and this owner is the one to share it."""
    return owner_of(parameter) is None and _found(_sharers, parameter) in (None, owner)


def _found(which: WeakTensorKeyDictionary, parameter: torch.Tensor) -> Owner | None:
    reference = which.get(parameter)  # type: ignore[no-untyped-call]
    owner: Owner | None = None if reference is None else reference()
    return owner


class ForeignWrites:
    """Outside writes to one replica. Before its first step all ranks start from them; later it can only warn."""

    def __init__(
        self, rank: int, replica: OptimizerReplica, needs_equal_weights: bool, begin_with_own: Callable[[], None]
    ) -> None:
        self._rank, self._replica = rank, replica
        self._begin_with_own = begin_with_own  # makes all ranks start from the written weights
        self._may_warn = needs_equal_weights  # once; not where ranks have weights of their own

    def handle(self, is_beginning: bool) -> None:
        """Called when there were such writes and the replica is about to be used. Waits for nobody."""
        if is_beginning:
            self._begin_with_what_was_written()
            return
        written = self._replica.written_by_others()
        self._replica.look.accept(written)
        if self._may_warn:
            self._may_warn = False
            log.warning(
                "[rank %d - round %d] %s was written between two steps, but not by this optimizer. The other ranks do "
                "not see that: unless each does the same after the same round, replicas differ from now on. To load "
                "weights while training, load them on all ranks and then call optimizer.load_state_dict() on all",
                *(self._rank, self._replica.version, self._replica.named_parameters()[written[0]][0]),
            )

    def _begin_with_what_was_written(self) -> None:
        written = [p.detach().clone() for p in self._replica.parameters]
        self._begin_with_own()
        self._replica.note_writes()
        if not all(map(torch.equal, written, self._replica.parameters)):
            log.warning(
                "[rank %d - round %d] weights were loaded here after DistributedOptimizer was made, but the other "
                "ranks started from different ones or are already training: this rank has taken over theirs. Load a "
                "checkpoint before the optimizer is made, or with optimizer.load_state_dict() on all ranks",
                *(self._rank, self._replica.version),
            )


def refuse_wrong_model(model: torch.nn.Module | None, parameters: Iterable[torch.Tensor]) -> None:
    """Raises if DDP wraps the model, or if the parameters belong to another model."""
    trained = list(parameters)
    refuse_ddp(model, trained)
    if model is not None and trained and {id(p) for p in trained}.isdisjoint(map(id, model.parameters())):
        raise OutpaceError(
            "none of the optimizer's parameters belongs to the model: pass the model that this optimizer trains, and "
            "make the optimizer from that very object, not from a copy"
        )


def refuse_ddp(model: torch.nn.Module | None, parameters: Iterable[torch.Tensor]) -> None:
    """Raises if DDP wraps the model or one of these parameters. Searches all objects: too slow for every step."""
    if isinstance(model, DistributedDataParallel):
        raise _refusal("the model is wrapped in")
    if not dist.is_available() or not dist.is_initialized():
        return  # DDP needs a group
    ours = {id(p) for p in parameters}
    if any(_has(ddp, ours) for ddp in _living()):
        gc.collect()  # a wrapper that the script has dropped may survive in a cycle; it averages nothing
        if any(_has(ddp, ours) for ddp in _living()):
            raise _refusal("the optimizer's parameters belong to a model in")


def _living() -> Iterator[DistributedDataParallel]:
    """All DDP wrappers. Compares exact types: a framework has a million objects, and isinstance would take seconds."""
    kinds = {id(kind) for kind in _with_heirs(DistributedDataParallel)}
    return (each for each in gc.get_objects() if id(type(each)) in kinds)


def _with_heirs(kind: type) -> Iterator[type]:
    yield kind
    heirs: list[type] = kind.__subclasses__()
    for heir in heirs:
        yield from _with_heirs(heir)


def _has(ddp: DistributedDataParallel, ours: set[int]) -> bool:
    return any(id(p) in ours for p in ddp.parameters())


def _refusal(what: str) -> OutpaceError:
    return OutpaceError(
        f"{what} torch's DistributedDataParallel, which averages gradients in backward() and waits for the slowest "
        "rank there: outpace would gain nothing. Train the plain model (`model.module`, or no DistributedDataParallel; "
        "in a framework, choose a strategy that does not wrap it) and let outpace average"
    )
