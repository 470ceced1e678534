"""How far an optimizer moves. Owns what a smaller batch does to those that normalise their gradient.

The step of SGD is as long as its gradient: a round of half the ranks, divided by all of them, is half a step, and the
mean of steps is the step of the mean. Adam and its relatives divide the gradient by its own size. An update of one
rank's gradient is as long a step as one of all, and the mean of P ranks' steps is shorter than the step of their mean
gradient, because each was divided by the noise of one rank alone. With a share r of signal in a rank's squared
gradient,

    step of the mean gradient of P ranks  =  mean of their steps / sqrt(r + (1 - r) / P)

which is sqrt(P) where noise prevails, as it mostly does. Adam's two moments tell r: the first one, an average over
about 19 steps, has lost most of the noise that the second one still has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from inspect import signature

import torch
from torch.optim import ASGD, SGD, Optimizer

LOOK_EVERY = 8  #: steps between two looks at the moments: a look costs about as much as an eighth of Adam's own step


def normalises(optimizer: Optimizer) -> bool:
    """Whether a gradient ten times as large makes about the same step. Found out by trying: with a new optimizer of
    the same kind and settings, and one number to train."""
    try:
        short, long = (_tenth_step(optimizer, gradient) for gradient in (0.1, 1.0))
    except Exception:  # it wants more than parameters and settings: as most that are not SGD
        return not isinstance(optimizer, (SGD, ASGD))
    return abs(long) < 3 * abs(short)


def _tenth_step(optimizer: Optimizer, gradient: float) -> float:
    """The first ones may be others: RAdam begins as SGD."""
    weight = torch.zeros(1, device="cpu", requires_grad=True)
    known = signature(type(optimizer)).parameters
    settings = {name: value for name, value in optimizer.defaults.items() if name in known}
    other = type(optimizer)([weight], **settings)
    before = 0.0
    for _ in range(10):
        before = float(weight.detach())
        weight.grad = torch.full_like(weight, gradient)
        other.step()
    return float(weight.detach()) - before


class SignalShare:
    """How much of a rank's squared gradients is signal, from the moments that its optimizer keeps."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._steps = 0
        self._share = 1.0

    def look(self) -> float:
        """0 for noise alone, 1 for none. Where an optimizer keeps no moments: 0."""
        if self._steps % LOOK_EVERY == 0 or self._steps < LOOK_EVERY:
            self._share = self._measured()
        self._steps += 1
        return self._share

    @torch.no_grad()
    def _measured(self) -> float:
        total, count, share_of_noise, unsettled = 0.0, 0, 0.0, 0.0
        for group in self._optimizer.param_groups:
            beta = float(group.get("betas", (0.0,))[0])
            for parameter in group["params"]:
                state = self._optimizer.state.get(parameter, {})
                first, second = state.get("exp_avg"), state.get("exp_avg_sq")
                if first is None or second is None or first.shape != second.shape:
                    continue
                steps = max(1.0, float(state.get("step", 1.0)))
                settled = 1 - beta**steps
                of_second = 1 - float(group["betas"][1]) ** steps
                ratio = first.float().square().div_(second.float().clamp_(min=1e-30))
                moving = int(second.count_nonzero())
                total += float(ratio.sum()) * of_second / settled**2
                count += moving
                share_of_noise += moving * (1 - beta) * (1 + beta**steps) / ((1 + beta) * settled)
                unsettled += moving * beta**steps
        if not count:
            return 0.0 if self._steps else 1.0
        noise = min(0.99, share_of_noise / count)
        share = min(1.0, max(0.0, (total / count - noise) / (1 - noise)))
        return share + (1 - share) * unsettled / count  # at the first steps the two moments are one and the same


class StepLength:
    """Makes an optimizer's steps as long as they would be if all ranks were in each round."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.is_matched = True  #: else steps are as long as the papers have them
        self._optimizer = optimizer
        self._signal = SignalShare(optimizer)

    @cached_property
    def _normalises(self) -> bool:
        return normalises(self._optimizer)

    def of_own_step(self, ranks: int) -> AbstractContextManager[None]:
        """For a step with this rank's own gradient, which is averaged with those of so many ranks in all."""
        if ranks == 1 or not self.is_matched or not self._normalises:
            return nullcontext()
        share = self._signal.look()
        return self._scaled(1.0 / math.sqrt(share + (1.0 - share) / ranks), decay=1.0)

    def of_round(self, size: float, is_one_of_many: bool) -> AbstractContextManager[None]:
        """For a round that is this much of one with everybody in it: it decays weights so much less. Where every
        gradient is an update of its own, it is a shorter step, too.

        Here the share of signal is taken for 0: measured, it would not be the same to the last bit on all machines.
        """
        if size in (0.0, 1.0) or not self.is_matched:
            return nullcontext()
        return self._scaled(math.sqrt(size) if is_one_of_many and self._normalises else 1.0, decay=size)

    @contextmanager
    def _scaled(self, length: float, decay: float) -> Iterator[None]:
        """Within, steps are so much longer and decay weights so much more; users and schedulers do not see it."""
        factors = {"lr": length, "weight_decay": decay / length}
        groups = self._optimizer.param_groups
        saved = [{key: group[key] for key in factors if key in group} for group in groups]
        for group, own in zip(groups, saved, strict=True):
            group.update({key: value * factors[key] for key, value in own.items()})
        try:
            yield
        finally:
            for group, own in zip(groups, saved, strict=True):
                group.update(own)
