"""The user's one bound, and what follows from it."""

from __future__ import annotations

SHORTEST_LEASE_S, LONGEST_LEASE_S = 2.0, 5.0
LONGEST_SILENCE_S = 60.0  #: of the store


def lease_s(timeout_s: float) -> float:
    """How long a host may be silent before the others give it up: a tenth of what a rank would wait.

    Longer than an agent takes to be started again, shorter than anybody likes to stand still.
    """
    return min(LONGEST_LEASE_S, max(SHORTEST_LEASE_S, timeout_s / 10))


def beat_s(timeout_s: float) -> float:
    """How often a host says that it is there."""
    return lease_s(timeout_s) / 8


def store_s(timeout_s: float) -> float:
    """How long the store may be silent. Less than a rank waits, so that the rank is told what the matter is."""
    return min(LONGEST_SILENCE_S, timeout_s / 2)


def group_s(timeout_s: float) -> float:
    """How long connections between agents may be silent. Beyond the lease, which decides who is waited for."""
    return max(timeout_s, 4 * lease_s(timeout_s))
