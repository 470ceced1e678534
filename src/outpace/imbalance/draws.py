"""Random numbers for one rank at one step. Owns the generator; never touches the global ones, which training uses.

A draw is an element of a SplitMix64 sequence (Steele, Lea and Flood, OOPSLA 2014), picked by rank and step. It needs no
state, so it costs a microsecond and does not depend on what was drawn before. Seeding a `random.Random` costs five.
"""

from __future__ import annotations

import random
from functools import lru_cache
from statistics import NormalDist

STANDARD_NORMAL = NormalDist()

_STEP_BITS = 40
_MASK = 2**64 - 1


def uniform(seed: int, rank: int, step: int, draw: int = 0) -> float:
    """A number between 0 and 1, both excluded. Each `draw` of the same rank and step is another one.

    No two (rank, step) of one seed share an element up to 2**24 ranks and 2**40 steps.
    """
    bits = (_first_state(seed, draw) + ((rank << _STEP_BITS) + step) * 0x9E3779B97F4A7C15) & _MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
    # 52 bits and a half: with 53, the largest would be rounded up to 1, which quantile functions do not take.
    return (((bits ^ (bits >> 31)) >> 12) + 0.5) * 2**-52


def normal(seed: int, rank: int, step: int, draw: int = 0) -> float:
    """A number of the standard normal distribution."""
    return STANDARD_NORMAL.inv_cdf(uniform(seed, rank, step, draw))


@lru_cache(maxsize=256)
def _first_state(seed: int, draw: int) -> int:
    """Far apart for neighbouring seeds, so that no two sequences overlap in practice."""
    return random.Random(f"{seed}/{draw}").getrandbits(64)
