"""Whether so many ranks fit into this machine's memory. Owns the estimate; a race that swaps shows nothing."""

from __future__ import annotations

from outpace.errors import InvalidRules
from outpace.job.machine import available_bytes

RANK_BYTES = 150_000_000  #: of a rank's own: measured 38 to 143 MB in worlds of 4, for the built-in workloads


def check_memory(ranks: int) -> None:
    """Raises `InvalidRules` if so many ranks would not fit. Where nothing is known of memory, they do."""
    free = available_bytes()
    if free is not None and ranks * RANK_BYTES > free:
        fitting = free // RANK_BYTES
        raise InvalidRules(
            f"{ranks:,} ranks need about {ranks * RANK_BYTES / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free "
            f"here: nothing was started. {f'Use --ranks {fitting} or less' if fitting else 'End other programs first'}"
        )
