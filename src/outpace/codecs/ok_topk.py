"""Ok-Topk (Li and Hoefler, PPoPP 2022): sparse sums with error feedback.

acc_i = residual_i + g_i
sent_i = acc_i where |acc_i| >= theta_i, else 0          theta_i keeps the largest `density` of each tensor
u = sum_i w_i sent_i where |.| >= Theta, else 0          Theta keeps the largest `density` of each chunk
residual_i = acc_i - sent_i, + sent_i where u is 0       zero only where sent and selected by all

Every contribution is accounted for: acc_i = sent_i + residual_i exactly, per entry, and one that was dropped or refused
goes back whole, into the rank's next contribution. density=1 is the dense sum, and residuals stay zero but for drops.
Entries as large as the threshold are all kept, so ties make it denser and never make it depend on an order.

Unlike the paper: thresholds are exact every time, where the paper computes them every 32 steps or more and
reuses them in between for speed; they are per tensor and per chunk instead of over the whole model; and rows stay dense
in memory, which is where ranks of one machine meet. Between hosts they are sparse (`engines/cluster/wire.py`).
The regions of the paper are the chunks.

Residuals of half types are kept in float32. A contribution that is not finite is passed on as it is, to be refused,
and leaves the residual alone. A residual saturates at the largest finite number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from outpace.codecs.base import Codec, Tensors
from outpace.errors import InvalidRules, ModelMismatch
from outpace.spec import is_number
from outpace.vector import accumulator, add_rows


class Sent(NamedTuple):
    indices: Tensor  #: into the flat tensor
    values: Tensor


@dataclass
class OkTopk(Codec):
    """The largest entries of each contribution and of the sum; what is not sent is kept for the next step.

    density: the share of entries that is sent, above 0; 1 is the dense sum.
    """

    density: float = 0.01

    def __post_init__(self) -> None:
        if not (is_number(self.density) and 0 < self.density <= 1):
            raise InvalidRules(
                f"density={self.density!r} must be a share of the entries above 0 and at most 1: 0.02 sends 2 %, 1 all"
            )
        self._residual: list[Tensor] = []
        self._sent: dict[int, list[Sent]] = {}

    @property
    def is_plain_sum(self) -> bool:
        return self.density == 1

    def residual(self) -> list[Tensor]:
        """What this rank has kept back, per tensor; empty before the first contribution."""
        return self._residual

    # -- on the rank whose contribution it is ----------------------------------------------------------------------

    def deposited(self, step: int, row: Tensors, present: Sequence[int]) -> None:
        if step in self._sent:
            raise InvalidRules(
                f"step {step} was contributed before and is neither applied nor dropped: sent again, ok-topk would "
                "forget what it sent the first time. Contribute under a new step"
            )
        self._fit(row)
        if not all(bool(place.isfinite().all()) for place in row):
            self._sent[step] = []
            return
        self._sent[step] = [
            self._send(place, residual) if is_there else _nothing(place)
            for place, residual, is_there in zip(row, self._residual, present, strict=True)
        ]

    def applied(self, step: int, result: Tensors) -> None:
        """Takes back what was sent and not selected: there the result is zero."""
        for sent, residual, update in zip(self._sent.pop(step, []), self._residual, result, strict=False):
            if self.density < 1:
                is_lost = update.reshape(-1)[sent.indices] == 0
                _give_back(residual, Sent(sent.indices[is_lost], sent.values[is_lost]))

    def dropped(self, step: int) -> None:
        for sent, residual in zip(self._sent.pop(step, []), self._residual, strict=False):
            _give_back(residual, sent)

    def forget(self, step: int) -> None:
        """What was sent and not selected is lost: nobody knows what it was."""
        self._sent.pop(step, None)

    def in_flight(self) -> list[int]:
        return sorted(self._sent)

    def _fit(self, row: Tensors) -> None:
        """Makes a residual of zeros for the first contribution, and checks that later ones have its shapes."""
        if not self._residual:
            self._residual = [torch.zeros(place.shape, dtype=accumulator(place.dtype), device="cpu") for place in row]
        mine, theirs = [tuple(t.shape) for t in self._residual], [tuple(t.shape) for t in row]
        if mine != theirs:
            raise ModelMismatch(
                f"ok-topk keeps a residual of {len(mine)} tensors, and this contribution has other shapes or another "
                f"number of tensors ({len(theirs)}). Resume from a checkpoint of this model, or start without one"
            )

    def _send(self, place: Tensor, residual: Tensor) -> Sent:
        most, largest = torch.finfo(residual.dtype).max, torch.finfo(place.dtype).max
        acc = residual.add_(place).clamp_(-most, most).view(-1)
        is_kept = (acc.abs() >= threshold(acc, self.density)).logical_and_(acc != 0)
        indices = is_kept.nonzero().squeeze(1)
        values = acc[indices].clamp_(-largest, largest).to(place.dtype)
        place.zero_().view(-1).index_copy_(0, indices, values)
        acc.index_copy_(0, indices, acc[indices] - values)
        return Sent(indices, values)

    # -- on any rank -----------------------------------------------------------------------------------------------

    def reduce(self, out: Tensor, rows: Tensors, factors: Sequence[float], seeds: Sequence[int], chunk: int) -> None:
        """Sums, and zeroes all but the largest entries. NaN is not below any threshold, and stays."""
        add_rows(out, rows, factors)
        self.select(out)

    def select(self, out: Tensor) -> None:
        if self.density < 1:
            out.masked_fill_(out.abs() < threshold(out, self.density), 0.0)

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        state = {f"residual.{index}": tensor.clone() for index, tensor in enumerate(self._residual)}
        for step, tensors in self._sent.items():
            for index, sent in enumerate(tensors):
                state[f"sent.{step}.{index}.indices"] = sent.indices.clone()
                state[f"sent.{step}.{index}.values"] = sent.values.clone()
        return state

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Becomes what `state` returned. Steps in flight that no round will take in are the caller's to drop."""
        tensors = range(sum(key.startswith("residual.") for key in state))
        steps = sorted({int(key.split(".")[1]) for key in state if key.startswith("sent.")})
        self._residual = [state[f"residual.{index}"].clone() for index in tensors]
        self._sent = {
            step: [
                Sent(*(state[f"sent.{step}.{index}.{field}"].clone() for field in Sent._fields)) for index in tensors
            ]
            for step in steps
        }


def threshold(values: Tensor, density: float) -> float:
    """The magnitude that the largest `density` of all entries reach, at least one of them."""
    if not values.numel():
        return 0.0
    wanted = max(1, math.ceil(density * values.numel() - 1e-9))
    return float(values.abs().kthvalue(values.numel() - wanted + 1).values)


def _give_back(residual: Tensor, sent: Sent) -> None:
    residual.view(-1).index_add_(0, sent.indices, sent.values.to(residual.dtype))


def _nothing(place: Tensor) -> Sent:
    return Sent(torch.empty(0, dtype=torch.int64, device="cpu"), torch.empty(0, dtype=place.dtype, device="cpu"))
