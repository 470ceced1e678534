"""How the inner optimizer's step is taken: which gradients it may read, with the same bits everywhere, and how far.

The step of SGD is as long as its gradient: a round of half the ranks, divided by all of them, is half a step, and the
mean of steps is the step of the mean. Adam and its relatives divide the gradient by its own size. A step with one
rank's gradient is as long as one with all, and the mean of P ranks' steps is shorter than the step of their mean
gradient, because each was divided by the noise of one rank alone. If r is the share of signal in a rank's squared
gradient,

    step of the mean gradient of P ranks  =  mean of their steps / sqrt(r + (1 - r) / P)

The factor is sqrt(P) where noise prevails, as it usually does. Adam's two moments tell r: the first, an average over
about 19 steps, has lost most of the noise that the second still has.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from inspect import Parameter, signature
from typing import Any

import torch
from torch.optim import ASGD, SGD, Adam, AdamW, Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from outpace.errors import OutpaceError


def refuse_needed_closure(optimizer: Optimizer) -> None:
    closure = signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is Parameter.empty:
        raise OutpaceError(
            f"{type(optimizer).__name__} calls its closure several times per step, each time at weights that the other "
            "ranks do not have, so there is nothing to average: use an optimizer that takes one gradient per step "
            "(SGD, AdamW)"
        )


@contextmanager
def global_hooks_silenced() -> Iterator[None]:
    """Silences torch's hooks for all optimizers. A step may apply several rounds; they fire once, for the wrapper."""
    of_all: tuple[dict[int, Any], ...] = (_global_optimizer_pre_hooks, _global_optimizer_post_hooks)
    kept = [(hooks, dict(hooks)) for hooks in of_all if hooks]
    for hooks, _ in kept:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, content in kept:
            hooks.update(content)


def clip_if_finite(parameters: list[torch.nn.Parameter], max_norm: float | None) -> bool:
    """Whether all gradients are finite. If so, clips them by their common norm; else leaves them alone."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return True
    norms = _together(torch._foreach_norm(gradients))
    if not bool(norms.isfinite().all()):  # reading it waits for the device: once for all gradients
        pairs = zip(torch._foreach_norm(gradients), gradients, strict=True)
        norms = _together([_norm(norm, gradient) for norm, gradient in pairs])
        if not bool(norms.isfinite().all()):
            return False
    if max_norm is not None:
        torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, torch.linalg.vector_norm(norms))
    return True


def _together(norms: Sequence[torch.Tensor]) -> torch.Tensor:
    wide = [norm if norm.dtype == torch.float64 else norm.float() for norm in norms]
    return torch.stack([norm.to(wide[0].device) for norm in wide])


def _norm(norm: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """The norm in a type that can hold it: squares of finite numbers may overflow, and so may a norm in float16."""
    if not bool(norm.isfinite()) and bool(gradient.isfinite().all()):
        norm = torch.linalg.vector_norm(gradient, dtype=torch.float64)
    return norm if norm.dtype == torch.float64 else norm.float()


def only_reads_gradients(optimizer: Optimizer) -> bool:
    """Whether `step()` leaves `.grad` untouched, so that it may point at memory shared by all ranks.

    Known for these classes only. SGD with Nesterov and foreach, for example, adds into the gradient.
    """
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return False  # a hook may do anything
    if type(optimizer) is SGD:
        return not any(group.get("nesterov") or group.get("fused") for group in optimizer.param_groups)
    return type(optimizer) in (Adam, AdamW) and not any(g.get("fused") for g in optimizer.param_groups)


@contextmanager
def same_bits_with_any_threads(dtypes: Collection[torch.dtype]) -> Iterator[None]:
    """Makes the bits of optimizer steps on these dtypes independent of the number of threads.

    Threads split a tensor at places that are not multiples of a vector register. The few numbers left over on each side
    are computed one by one, and torch rounds these after every operation if they are of a half type. So one thread
    takes steps on half types. Wider types give the same bits anyway.
    """
    threads = torch.get_num_threads()
    if threads == 1 or all(dtype.itemsize >= 4 for dtype in dtypes):
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


LOOK_EVERY = 8  #: steps between two measurements, each of which costs about an eighth of Adam's own step


def normalises(optimizer: Optimizer) -> bool:
    """Whether a gradient ten times as large makes about the same step. Found by trying it on a new optimizer with the
    same settings and a single weight."""
    try:
        short, long = (_last_step(optimizer, [gradient] * 10) for gradient in (0.1, 1.0))
    except Exception:  # it needs more than parameters and settings: assume what holds for most but SGD
        return not isinstance(optimizer, (SGD, ASGD))
    return abs(long) < 3 * abs(short)


def has_momentum(optimizer: Optimizer) -> bool:
    """Whether weights keep moving without a gradient. Found in the same way."""
    try:
        with_gradient, without = (_last_step(optimizer, [*[1.0] * 9, last]) for last in (1.0, 0.0))
    except Exception:  # as above
        return True
    return abs(without) > 0.1 * abs(with_gradient)


def _last_step(optimizer: Optimizer, gradients: Sequence[float]) -> float:
    """The length of the last step, as the first may be different: RAdam starts as SGD."""
    weight = torch.zeros(1, device="cpu", requires_grad=True)
    known = signature(type(optimizer)).parameters
    settings = {name: value for name, value in optimizer.defaults.items() if name in known}
    other = type(optimizer)([weight], **settings)
    before = 0.0
    for gradient in gradients:
        before = float(weight.detach())
        weight.grad = torch.full_like(weight, gradient)
        other.step()
    return float(weight.detach()) - before


class SignalShare:
    """How much of a rank's squared gradients is signal, estimated from its optimizer's moments."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._steps = 0
        self._share = 1.0

    def look(self) -> float:
        """The share: 0 for noise alone, 1 for no noise. 0 if the optimizer keeps no moments."""
        if self._steps % LOOK_EVERY == 0 or self._steps < LOOK_EVERY:
            self._share = self._measured()
        self._steps += 1
        return self._share

    @torch.no_grad()
    def _measured(self) -> float:
        total, count, share_of_noise, unsettled = 0.0, 0, 0.0, 0.0
        betas: list[tuple[float, float]] = []
        looked: list[torch.Tensor] = []  # three numbers for each parameter
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                state = self._optimizer.state.get(parameter, {})
                first, second = state.get("exp_avg"), state.get("exp_avg_sq")
                if first is None or second is None or first.shape != second.shape:
                    continue
                ratio = first.float().square().div_(second.float().clamp_(min=1e-30))
                betas.append((float(group["betas"][0]), float(group["betas"][1])))
                made = state.get("step", 1.0)
                made = made if isinstance(made, torch.Tensor) else torch.tensor(made, device="cpu")
                looked += [made, ratio.sum(), second.count_nonzero()]
        numbers = iter(_plain_numbers(looked))
        for (beta, of_squares), taken, ratio_sum, moving in zip(betas, numbers, numbers, numbers, strict=True):
            steps = max(1.0, taken)
            settled = 1 - beta**steps
            total += ratio_sum * (1 - of_squares**steps) / settled**2
            count += int(moving)
            share_of_noise += moving * (1 - beta) * (1 + beta**steps) / ((1 + beta) * settled)
            unsettled += moving * beta**steps
        if not count:
            return 0.0 if self._steps else 1.0
        noise = min(0.99, share_of_noise / count)
        share = min(1.0, max(0.0, (total / count - noise) / (1 - noise)))
        return share + (1 - share) * unsettled / count  # at the first steps the two moments are equal


def _plain_numbers(scalars: Sequence[torch.Tensor]) -> list[float]:
    """The values, waiting once for each device and not once for each scalar."""
    found = [0.0] * len(scalars)
    for device in {scalar.device for scalar in scalars}:
        there = [index for index, scalar in enumerate(scalars) if scalar.device == device]
        values = torch.stack([scalars[index].double().view(()) for index in there]).tolist()
        for index, value in zip(there, values, strict=True):
            found[index] = value
    return found


class StepLength:
    """Makes an optimizer's steps as long as they would be if all ranks were in each round."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.is_matched = True  #: otherwise steps are as long as in the papers
        self._optimizer = optimizer
        self._signal = SignalShare(optimizer)

    @cached_property
    def _normalises(self) -> bool:
        return normalises(self._optimizer)

    @cached_property
    def has_momentum(self) -> bool:
        return has_momentum(self._optimizer)

    def of_own_step(self, ranks: int) -> AbstractContextManager[None]:
        """For a local step with this rank's own gradient, whose result is averaged with those of `ranks` in all."""
        if ranks == 1 or not self.is_matched or not self._normalises:
            return nullcontext()
        share = self._signal.look()
        return self._scaled(1.0 / math.sqrt(share + (1.0 - share) / ranks), decay=1.0)

    def of_round(self, size: float, stride: float, rest_follows: bool) -> AbstractContextManager[None]:
        """For a round with this share of a full round's work: weight decay shrinks with it. The step is shorter, too,
        where momentum would carry a small round too far (`protocol.round.UsualSize`), and where the rest of the work
        follows in rounds of its own: an optimizer that divides its gradient by its own size would move further in
        smaller rounds, since there are more of them.

        The share of signal is assumed to be 0: a measured one would differ in its last bits between machines.
        """
        if size in (0.0, 1.0) or not self.is_matched:
            return nullcontext()
        length = math.sqrt(size) if rest_follows and self._normalises else 1.0
        return self._scaled(length * stride if stride != 1.0 and self.has_momentum else length, decay=size)

    @contextmanager
    def _scaled(self, length: float, decay: float) -> Iterator[None]:
        """Scales the step and the weight decay inside the context. Users and schedulers do not see it."""
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
