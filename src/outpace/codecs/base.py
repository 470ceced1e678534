"""What a codec may do to a contribution and to a round. Owns the interface and the simplest codec.

Two kinds of hooks, which must not be mixed up. `reduce` may run on any rank, and twice: it reads its arguments and the
codec's options only, and gives the same bits everywhere. `deposited`, `applied` and `dropped` run on the rank whose
contribution it is, and may keep state there: every rank has a codec object of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outpace.errors import InvalidRules
from outpace.randomness import index_of, splitmix64
from outpace.vector import add_rows

Tensors = Sequence[Tensor]


class Codec:
    """Codes nothing: contributions are summed as they are. Base of the codecs that do."""

    @property
    def is_plain_sum(self) -> bool:
        """Whether `reduce` is the weighted sum itself, so that a faster way to sum may take its place."""
        return True

    def deposited(self, step: int, row: Tensors, present: Sequence[int]) -> None:
        """Changes a contribution in place, after the gradients were copied in and before anybody else may read it.

        `present` is 0 for the tensors without a gradient: their rows are zero, and stay so. Does not block.
        """

    def reduce(self, out: Tensor, rows: Tensors, factors: Sequence[float], seeds: Sequence[int], chunk: int) -> None:
        """Writes the coded sum of one chunk of all contributions into `out`, which has the accumulator's dtype.

        Deterministic. `seeds` has a `contribution_seed` for every row. Where a row is not finite, neither is `out`.
        """
        add_rows(out, rows, factors)

    def applied(self, step: int, result: Tensors) -> None:
        """A round with this rank's contribution of that step is applied. Only reads the result."""

    def dropped(self, step: int) -> None:
        """The contribution of that step was dropped or refused, or its round was void: nothing of it is applied."""

    def forget(self, step: int) -> None:
        """The fate of that step's contribution will never be known: its round was skipped."""

    def in_flight(self) -> list[int]:
        """Steps whose contributions are neither applied nor dropped yet, oldest first. Empty if it keeps no count."""
        return []

    def state(self) -> dict[str, Tensor]:
        """Copies of all that this rank's codec remembers, for a checkpoint."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Becomes what `state` returned. Raises if another kind of codec saved it."""
        if state:
            raise InvalidRules(
                f"the checkpoint holds gradients that a codec had kept back ({min(state)}, ...), and {self!r} keeps "
                "none. Resume with the codec it was saved with, or remove them from the checkpoint to discard them"
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


# -- the randomness of a coded contribution ---------------------------------------------------------------------------
# It depends on (rank, step, chunk) alone: whoever reduces a chunk, and however often, rounds it the same way.


def contribution_seed(rank: int, step: int) -> int:
    """A seed for each contribution. No two are equal up to 2**24 ranks and 2**40 steps."""
    return splitmix64(index_of(rank, step))


def chunk_generator(seed: int, chunk: int) -> torch.Generator:
    """The generator for one chunk of a contribution. Mixed, for torch seeds its CPU generator with the low 32 bits."""
    return torch.Generator().manual_seed(splitmix64(splitmix64(seed) + chunk))


class Bfloat16(Codec):
    """Every contribution rounded to bfloat16, summed in float32.

    sum = sum_i w_i bf16(g_i), made in float32 (in float64 for models of float64). Half the bytes of float32, a relative
    error of at most 2^-8 for each contribution, biased, without error feedback. bfloat16 has the range of float32 but
    for the last 0.2 %: what is finite and beyond 3.396e38 becomes infinite. No contribution is at fault, the round is
    void. Between hosts, sums of hosts are rounded once more and added in bfloat16 (`engines/cluster/wire.py`).
    """

    @property
    def is_plain_sum(self) -> bool:
        return False

    def reduce(self, out: Tensor, rows: Tensors, factors: Sequence[float], seeds: Sequence[int], chunk: int) -> None:
        add_rows(out, (row.to(torch.bfloat16) for row in rows), factors)
