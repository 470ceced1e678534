"""Whose a parameter is: which optimizer trains it or shares it, and who else writes to it while it trains.

Two optimizers have versions of their own, so that a parameter which both step would have other bits on every rank, and
one that only the other steps must not be written from this one's snapshots.

Weights that somebody else writes - a checkpoint that is loaded late, a clamp, a norm kept in check - are noticed by the
counters that torch keeps for autograd. Other ranks cannot see such writes.

Under DDP every `backward()` waits for the slowest rank, so that there is nothing left to gain, and what is averaged was
averaged before. Frameworks wrap models by themselves, after the optimizer was made and out of the script's sight; DDP's
hooks are in C++ and cannot be seen on parameters. So it is the DDP objects that are looked for, among all there are.
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
    """Whoever steps parameters."""

    lost: torch.Tensor | None  #: a parameter of its own that a newer owner has claimed


_owners = WeakTensorKeyDictionary()  # parameter -> weak reference to who steps it
_sharers = WeakTensorKeyDictionary()  # parameter -> weak reference to who was first to share it, though it steps it not


def claim(owner: Owner, trained: Iterable[torch.Tensor], others: Iterable[torch.Tensor]) -> None:
    """From now on `trained` are stepped by this owner, as long as it lives. An older one learns what it has lost.

    Of the others, those that nobody shares so far are shared by it: what they are later on is none of a newer one's.
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
    """Who steps a parameter; None if no `DistributedOptimizer` does."""
    return _found(_owners, parameter)


def shares(owner: Owner, parameter: torch.Tensor) -> bool:
    """Whether nobody steps a parameter, and it is for this owner to share it."""
    return owner_of(parameter) is None and _found(_sharers, parameter) in (None, owner)


def _found(which: WeakTensorKeyDictionary, parameter: torch.Tensor) -> Owner | None:
    reference = which.get(parameter)  # type: ignore[no-untyped-call]
    owner: Owner | None = None if reference is None else reference()
    return owner


class ForeignWrites:
    """Of one replica. Before its first step they are what all ranks begin with; later they can only be pointed out."""

    def __init__(
        self, rank: int, replica: OptimizerReplica, needs_equal_weights: bool, begin_with_own: Callable[[], None]
    ) -> None:
        self._rank, self._replica = rank, replica
        self._begin_with_own = begin_with_own  # makes the written weights what all ranks begin with
        self._may_warn = needs_equal_weights  # weights of one's own may be written; once said is enough

    def handle(self, is_beginning: bool) -> None:
        """There are some, and the replica is about to be used, for the first time or not. Waits for nobody."""
        if is_beginning:
            self._begin_with_what_was_written()
            return
        written = self._replica.written_by_others()
        self._replica.look.accept(written)
        if self._may_warn:
            self._may_warn = False
            log.warning(
                "[rank %d - round %d] %s was written between two steps, and not by this optimizer. The other ranks do "
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
                "[rank %d - round %d] the weights that were loaded after DistributedOptimizer was made are not those "
                "of the other ranks, who began with others or are further: this rank has taken up theirs. Load a "
                "checkpoint before the optimizer is made, or with optimizer.load_state_dict() on all ranks",
                *(self._rank, self._replica.version),
            )


def refuse_wrong_model(model: torch.nn.Module | None, parameters: Iterable[torch.Tensor]) -> None:
    """Raises if DDP has the model, or if it is not the one that these parameters are of."""
    trained = list(parameters)
    refuse_ddp(model, trained)
    if model is not None and trained and {id(p) for p in trained}.isdisjoint(map(id, model.parameters())):
        raise OutpaceError(
            "none of the optimizer's parameters is one of the model's: pass the model that this optimizer trains, and "
            "make the optimizer of that very object, not of a copy"
        )


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
    """A framework has a million objects, and asking each for its class's ancestors takes seconds."""
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
        "rank there: outpace would gain nothing. Train the plain model (`model.module`, or leave "
        "DistributedDataParallel away; in a framework, choose a strategy that does not wrap it) and let outpace average"
    )
