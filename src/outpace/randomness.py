"""Random numbers that follow from names and numbers alone, and the state of the generators that training draws from.

Draws never touch the global generators.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from statistics import NormalDist
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

STANDARD_NORMAL = NormalDist()
SPLITMIX_STEP = 0x9E3779B97F4A7C15  #: between two states of SplitMix64

_STEP_BITS = 40
_MASK = 2**64 - 1

Bits = TypeVar("Bits", int, NDArray[np.uint64])


# -- the global generators --------------------------------------------------------------------------------------------


def global_state() -> dict[str, Any]:
    """The state of Python's, numpy's and torch's own generators, of every GPU's, too."""
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def restore_global_state(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])


# -- torch generators by name -----------------------------------------------------------------------------------------


def seed_of(name: str) -> int:
    """The same in every process."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest(), "big")


def generator(name: str) -> torch.Generator:
    return torch.Generator().manual_seed(seed_of(name))


@contextmanager
def seeded(name: str) -> Iterator[None]:
    """A context in which torch draws what this name says, such as a model's initial weights; no trace is left."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(name))
        yield


# -- SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) ------------------------------------------------------------------


def mix64(bits: Bits) -> Bits:
    """The element of SplitMix64 that belongs to a state. A state is any number of 64 bits, or an array of them."""
    mixed: Any = bits  # numpy's stubs take these numbers for signed ones
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)  # type: ignore[no-any-return]


def splitmix64(index: int) -> int:
    """An element of the sequence that begins at 0."""
    return mix64(index * SPLITMIX_STEP & _MASK)


def index_of(rank: int, step: int) -> int:
    """Into a sequence. No two are equal up to 2**24 ranks and 2**40 steps."""
    return (rank << _STEP_BITS) + step


def uniform(seed: int, rank: int, step: int, draw: int = 0) -> float:
    """A number between 0 and 1, both excluded. Each `draw` of the same rank and step is another one.

    It needs no state, so it costs a microsecond and does not depend on what was drawn before. Seeding a `random.Random`
    costs five.
    """
    bits = mix64((_first_state(seed, draw) + index_of(rank, step) * SPLITMIX_STEP) & _MASK)
    # 52 bits and a half: with 53, the largest would be rounded up to 1, which quantile functions do not take.
    return ((bits >> 12) + 0.5) * 2**-52


def normal(seed: int, rank: int, step: int, draw: int = 0) -> float:
    return STANDARD_NORMAL.inv_cdf(uniform(seed, rank, step, draw))


@lru_cache(maxsize=256)
def _first_state(seed: int, draw: int) -> int:
    """Far apart for neighbouring seeds, so that no two sequences overlap in practice."""
    return random.Random(f"{seed}/{draw}").getrandbits(64)
