"""Which optimizer trains a parameter. Owns the one answer of this process; a parameter has one owner at a time.

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


_owners = WeakTensorKeyDictionary()  # parameter -> weak reference to its owner


def claim(owner: Owner, parameters: Iterable[torch.Tensor]) -> None:
    """From now on these are stepped by this owner. An older one learns that it has lost them."""
    for parameter in parameters:
        before = owner_of(parameter)
        if before is not None and before is not owner:
            before.lost = parameter
        _owners[parameter] = weakref.ref(owner)


def release(owner: Owner, parameters: Iterable[torch.Tensor]) -> None:
    """It has stepped for the last time."""
    for parameter in parameters:
        if owner_of(parameter) is owner:
            del _owners[parameter]


def owner_of(parameter: torch.Tensor) -> Owner | None:
    """Who steps a parameter; None if no `DistributedOptimizer` does."""
    reference = _owners.get(parameter)  # type: ignore[no-untyped-call]
    owner: Owner | None = None if reference is None else reference()
    return owner
