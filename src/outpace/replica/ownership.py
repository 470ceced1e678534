"""Which optimizer trains a parameter, and which one shares those that none trains. Owns the one answer of this process.

Two optimizers have versions of their own, so that a parameter which both step would have other bits on every rank, and
one that only the other steps must not be written from this one's snapshots.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Protocol

import torch
from torch.utils.weak import WeakTensorKeyDictionary


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
