"""Where gradients are computed: ahead of the weights, by about as far as these move until the gradients are applied.

A late gradient is one of older weights. With momentum that does harm out of proportion: it pushes on where the weights
have turned already, and feeds oscillations that only 1 - momentum damps. If of all gradients a share comes late, then
computing every one of them a little ahead makes up for it in the mean, whoever it is that will be late:

    gradients are computed at  w[t] + ahead * (w[t] - w[t-1])

`ahead` grows with how late work is lately (`protocol.round.Lateness`), and is 0 while nobody is late. The weights
themselves stay what rounds have made of them, bit for bit: they are kept here meanwhile, and are back in the model
whenever a round is applied or the ranks meet. Looking ahead by each worker's own lateness is known from SpecTrain
(Chen, Yang, Cheng, arXiv 1809.02839) and DANA (Hakimi, Barkai, Gabel, Schuster, arXiv 1907.11612).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

AT_ONCE = 1 << 20  #: numbers that are moved together: a displacement takes so much room, or that of one tensor


class LookAhead:
    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._parameters = parameters
        self._kept: list[torch.Tensor] | None = None  # the weights; before a look ahead, those of one round earlier
        self._ahead = 0.0  # how far, once the step that was begun is taken
        self._is_ahead = self._is_refused = False
        self.is_idle = True  #: nobody is late, and nothing is kept
        self.is_due = False  #: the model is to be moved, and is not there yet

    def weights(self) -> list[torch.Tensor]:
        """As rounds have made them, wherever the model is."""
        return self._kept if self._is_ahead and self._kept is not None else self._there()

    @torch.no_grad()
    def begin_step(self, ahead: float) -> None:
        """Before the weights change. If they are to be looked ahead from, remembers where they were."""
        self.go_back()
        self._ahead = 0.0 if self._is_refused else ahead
        self.is_idle, self.is_due = not self._ahead, self._ahead > 0
        if self.is_idle:
            self._kept = None  # nobody is late any more: the memory is given back
        elif self._kept is None or self._kept[0].device != self._parameters[0].device:
            self._kept = [w.clone() for w in self._there()]
        else:
            torch._foreach_copy_(self._kept, self._there())

    @torch.no_grad()
    def go(self) -> None:
        """Moves the model there."""
        assert self._kept is not None
        self._is_ahead, self.is_due = True, False
        for here, kept in zip(_pieces(self._there()), _pieces(self._kept), strict=True):
            way = torch._foreach_sub(here, kept)
            torch._foreach_copy_(kept, here)
            torch._foreach_add_(here, way, alpha=self._ahead)

    @torch.no_grad()
    def go_back(self) -> None:
        """To the weights themselves."""
        if self._is_ahead and self._kept is not None:
            torch._foreach_copy_(self._there(), self._kept)
        self.begin_anew()

    def begin_anew(self) -> None:
        """The weights come from elsewhere: there is no way that they have come."""
        self._is_ahead, self._ahead, self.is_due = False, 0.0, False

    @torch.no_grad()
    def accept(self, written: Iterable[int]) -> None:
        """Somebody else has written these tensors. What is there are the weights now; from here on this rank computes
        at the weights, so that a script that writes them at every step keeps what it wrote."""
        self._is_refused = True
        if self._is_ahead and self._kept is not None:
            for index in written:
                self._kept[index].copy_(self._parameters[index])

    def _there(self) -> list[torch.Tensor]:
        """Asked for anew each time: a model may move to another device."""
        return [p.detach() for p in self._parameters]


def _pieces(tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    pieces: list[list[torch.Tensor]] = []
    size = AT_ONCE
    for tensor in tensors:
        if size + tensor.numel() > AT_ONCE:
            pieces.append([])
            size = 0
        pieces[-1].append(tensor)
        size += tensor.numel()
    return pieces
