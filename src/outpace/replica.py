"""One rank's model and optimizer: gradients out, results in. Owns everything that touches user tensors.

Must never decide when or what to apply: the engine hands it rounds, in order, and it applies them.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from operator import is_
from typing import Any

import torch
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from outpace.codecs import Codec
from outpace.engines.base import Contents, Notes, Result, Work
from outpace.errors import OutpaceError, ParametersChanged, SparseGradient
from outpace.protocol.round import Round
from outpace.protocol.rules import Rules
from outpace.step_length import SignalShare, lengthened, normalises, scaled

log = logging.getLogger("outpace")

_NOT_HYPER = ("params", "param_names")
_CONSTANTS = (bool, int, float, str, type(None))
RoundHook = Callable[[Round], None]


class OptimizerReplica:
    """A torch optimizer and its model, as engines see them."""

    def __init__(self, inner: Optimizer, model: torch.nn.Module | None, on_round: RoundHook | None = None) -> None:
        self.inner = inner
        self.version = 0
        self._model = model
        self._on_round = on_round
        self._names = {id(p): name for name, p in model.named_parameters()} if model is not None else {}
        self._groups = [list(group["params"]) for group in inner.param_groups]
        self.parameters = [p for group in self._groups for p in group if p.requires_grad]
        chosen = {id(p) for p in self.parameters}
        everything = (*(p for group in self._groups for p in group), *(() if model is None else model.parameters()))
        frozen = {id(p): p for p in everything if id(p) not in chosen}
        self._frozen = list(frozen.values())
        self._frozen_in_groups = [p for group in self._groups for p in group if id(p) not in chosen]
        self.codec = Codec()  #: of what it contributes
        self.max_grad_norm: float | None = None  #: for steps of its own
        self.rules: Rules | None = None  #: of the training it takes part in; its engine says so
        self.match_step_length = True  #: an optimizer that normalises its gradient moves as far as in allreduce
        self._signal = SignalShare(inner)
        self.refused = 0  #: steps of its own that were left out, because a gradient was not finite
        self._present = b""  # parameters with a gradient in the last row
        self.is_torn = False  #: interrupted in the middle of a step: neither the old version nor the new one
        self._kept_by_optimizer: set[str] = set()  # group entries the optimizer itself changes, as it does its state
        self._private: list[torch.Tensor] | None = None
        self._written: tuple[list[Any], bytes] = ([], b"")  # hyper-parameters as they were, and as they were written
        self._parsed: tuple[bytes, list[dict[str, Any]]] = (b"", [])
        self.hyper = self._own_hyper()  #: hyper-parameters of the last round applied; before the first, rank 0's own

    def named_parameters(self) -> list[tuple[str, torch.Tensor]]:
        """The parameters that are trained, with names that mean something in error messages."""
        return [(self._name(p, index), p) for index, p in enumerate(self.parameters)]

    def extra_bytes(self) -> int:
        """Size of what a snapshot holds beside parameters, optimizer state and buffers."""
        return sum(64 + p.numel() * p.element_size() for p in self._frozen)

    def check_unchanged(self) -> None:
        """Raises if parameters were added to or taken from the inner optimizer."""
        groups = self.inner.param_groups
        same = len(groups) == len(self._groups) and all(
            len(group["params"]) == len(mine) and all(map(is_, group["params"], mine))
            for group, mine in zip(groups, self._groups, strict=True)
        )
        if not same or any(p.requires_grad for p in self._frozen_in_groups):
            raise ParametersChanged(
                "the optimizer has other parameters than when DistributedOptimizer was made, or one was unfrozen. "
                "Contributions of all ranks must have one shape: add and unfreeze parameters before, or make a new "
                "DistributedOptimizer on all ranks"
            )

    # -- contributing ----------------------------------------------------------------------------------------------

    def deposit(
        self, row: Sequence[torch.Tensor], work: Work, onto: Sequence[torch.Tensor] | None = None
    ) -> tuple[bytes, bytes]:
        """Copies all gradients into the row. Parameters without one contribute zeros and say so.

        With an earlier row, the new one is the sum of both.
        """
        present = self._copy_gradients(row, work.scale)
        self.codec.deposited(work.step, row, present)
        if onto is not None:
            torch._foreach_add_(list(row), list(onto))
            present = bytes(map(int.__or__, present, self._present))
        self._present = present
        return present, self._own_hyper()

    def _copy_gradients(self, row: Sequence[torch.Tensor], scale: float) -> bytes:
        self.check_unchanged()
        places, gradients, present = [], [], []
        for index, (place, parameter) in enumerate(zip(row, self.parameters, strict=True)):
            gradient = parameter.grad
            present.append(gradient is not None)
            if gradient is None:
                place.zero_()
                continue
            if gradient.layout != torch.strided:
                raise SparseGradient(
                    f"parameter {self._name(parameter, index)} has a sparse gradient, and outpace averages dense "
                    "ones. Use Embedding(sparse=False), or keep that parameter out of this optimizer"
                )
            places.append(place)
            gradients.append(gradient)
        if places:
            torch._foreach_copy_(places, gradients)
            if scale != 1.0:
                torch._foreach_mul_(places, scale)
        return bytes(present)

    # -- steps of its own, for strategies that average weights -----------------------------------------------------

    def local_step(self, work: Work) -> None:
        """Takes the inner optimizer's step with this rank's own gradients. One that is not finite is left out."""
        self.check_unchanged()
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        if gradients and work.scale != 1.0:
            torch._foreach_mul_(gradients, work.scale)
        if not self._is_finite(gradients):
            self.refused += 1
            if self.refused & (self.refused - 1) == 0:  # the first, second, fourth, ...: not a line a step
                log.warning(
                    "a gradient is not finite: this rank leaves out its step; so far it did %d times", self.refused
                )
            return
        self.is_torn = True
        with self._own_length():
            self._own_step()
        self.is_torn = False

    def _own_length(self) -> AbstractContextManager[None]:
        """The mean of all ranks' steps is to be as long as the step of their mean gradient."""
        if self.rules is None or self.rules.world == 1 or not self._normalises:
            return nullcontext()
        return scaled(self.inner, lengthened(self._signal.look(), self.rules.world), decay=1.0)

    def _length_of(self, applied: Round) -> AbstractContextManager[None]:
        """A round of few ranks is a shorter step, and decays the weights by as much less."""
        size = 1.0 if self.rules is None else applied.size(self.rules.of_sums)
        if size in (0.0, 1.0) or not self.match_step_length:
            return nullcontext()
        return scaled(self.inner, math.sqrt(size) if self._normalises else 1.0, decay=size)

    @cached_property
    def _normalises(self) -> bool:
        return self.match_step_length and normalises(self.inner)

    def _own_step(self) -> None:
        self.inner.step()

    def _is_finite(self, gradients: list[torch.Tensor]) -> bool:
        """Clips, too, if that is wanted: the norm is known then."""
        if self.max_grad_norm is not None and gradients:
            return bool(torch.nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm).isfinite())
        return all(bool(norm.isfinite()) for norm in torch._foreach_norm(gradients)) if gradients else True

    def prepare(self) -> None:
        """The weights can be published as they are."""

    def has_published(self) -> None:
        """Nothing depends on it."""

    def published(self) -> list[torch.Tensor]:
        """The weights."""
        return [p.detach() for p in self.parameters]

    def notes(self) -> Notes:
        """Nothing goes with them."""
        return ()

    def averaged(self, notes: Notes) -> None:
        """The weights are an average now."""

    def rebase(self, weights: Sequence[torch.Tensor]) -> None:
        """Takes these weights over: what was done since the last average is not remembered, and cannot go on top."""
        torch._foreach_copy_(self.published(), list(weights))

    def meeting(self) -> list[torch.Tensor]:
        """The model's buffers."""
        return self.buffers()

    def met(self) -> None:
        """Nothing else depends on them."""

    def give_up(self, step: int) -> bool:
        """A contribution was not taken in. True if the codec keeps it, to go with a later one."""
        is_kept = step in self.codec.in_flight()
        self.codec.dropped(step)
        return is_kept

    def keep_only(self, steps: Collection[int]) -> None:
        """Rounds were passed over: of what this rank has given away, only these can still be applied."""
        for step in self.codec.in_flight():
            if step not in steps:
                self.codec.forget(step)

    def extra_state(self) -> dict[str, Any]:
        """What a checkpoint needs beside the weights and the inner optimizer's state. Local."""
        return {"codec": self.codec.state()}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        """The inverse of `extra_state`."""
        self.codec.load_state(state["codec"])
        for step in self.codec.in_flight():
            self.codec.forget(step)  # it is contributed again, as a whole

    # -- applying --------------------------------------------------------------------------------------------------

    def apply(self, result: Result) -> None:
        """Takes the inner optimizer's step with the round's gradient and hyper-parameters, then puts both back."""
        self.hyper = result.hyper or self.hyper
        for step in result.mine:
            self.codec.applied(step, result.gradients)
        for step in result.refused:
            self.codec.dropped(step)
        if not result.round.void:
            own = [p.grad for p in self.parameters]
            self.is_torn = True
            with self._hyper_parameters(), self._length_of(result.round):
                try:
                    gradients = self._readable(result)
                    for parameter, gradient, is_there in zip(self.parameters, gradients, result.present, strict=True):
                        parameter.grad = gradient if is_there else None
                    self.inner.step()
                finally:
                    for parameter, own_gradient in zip(self.parameters, own, strict=True):
                        parameter.grad = own_gradient
        self.version += 1
        self.is_torn = False
        if self._on_round is not None:
            self._on_round(result.round)

    def _readable(self, result: Result) -> Sequence[torch.Tensor]:
        """The shared result itself where the optimizer is known only to read it, else a private copy."""
        on_cpu = all(p.device.type == "cpu" for p in self.parameters)
        if result.round.clip == 1.0 and on_cpu and only_reads_gradients(self.inner):
            return result.gradients
        if self._private is None:
            self._private = [torch.empty_like(p) for p in self.parameters]
        torch._foreach_copy_(self._private, list(result.gradients))
        if result.round.clip != 1.0:
            torch._foreach_mul_(self._private, result.round.clip)
        return self._private

    # -- hyper-parameters ------------------------------------------------------------------------------------------

    def _own_hyper(self) -> bytes:
        """This rank's hyper-parameters, written anew only when one of them is another object than last time."""
        values = [value for group in self.inner.param_groups for key, value in group.items() if key not in _NOT_HYPER]
        seen, written = self._written
        if len(values) == len(seen) and all(map(is_, values, seen)):
            return written
        groups = [
            {key: _plain(value) for key, value in group.items() if key not in _NOT_HYPER and _is_plain(value)}
            for group in self.inner.param_groups
        ]
        written = json.dumps(groups).encode()
        self._written = (values if all(map(_is_constant, values)) else [], written)
        return written

    def _parsed_hyper(self) -> list[dict[str, Any]]:
        """The round's hyper-parameters, read once for as long as they stay the same."""
        if self._parsed[0] != self.hyper:
            self._parsed = (self.hyper, json.loads(self.hyper))
        return self._parsed[1]

    @contextmanager
    def _hyper_parameters(self) -> Any:
        """The round's hyper-parameters in place of this rank's own, which its schedulers go on to see."""
        saved: list[dict[str, Any]] = []
        for group, values in zip(self.inner.param_groups, self._parsed_hyper(), strict=True):
            own = {key: group[key] for key in values if key in group and key not in self._kept_by_optimizer}
            saved.append(own)
            for key, mine in own.items():
                group[key] = tuple(values[key]) if isinstance(mine, tuple) else values[key]
        given = [{key: group[key] for key in own} for group, own in zip(self.inner.param_groups, saved, strict=True)]
        try:
            yield
        finally:
            for group, own, put in zip(self.inner.param_groups, saved, given, strict=True):
                changed = {key for key in own if group[key] is not put[key]}
                self._kept_by_optimizer |= changed
                group.update({key: value for key, value in own.items() if key not in changed})

    # -- snapshots -------------------------------------------------------------------------------------------------

    def capture(self) -> Contents:
        """Weights, optimizer state, buffers and frozen parameters."""
        tensors = [t.detach() for t in (*self.parameters, *self._frozen, *self.buffers())]
        state: list[dict[str, Any]] = []
        for parameter in self.parameters:
            kept: dict[str, Any] = {}
            for key, value in self.inner.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    kept[key] = {"tensor": len(tensors), "beside": value.device == parameter.device}
                    tensors.append(value.detach())
                elif _is_plain(value):
                    kept[key] = {"value": _plain(value)}
                else:
                    raise OutpaceError(
                        f"{type(self.inner).__name__} keeps {key!r} of type {type(value).__name__} in its state, "
                        "which cannot be shared between ranks; use an optimizer whose state is tensors and numbers"
                    )
            state.append(kept)
        groups = [{key: _plain(g[key]) for key in self._kept_by_optimizer if key in g} for g in self.inner.param_groups]
        return Contents(tensors, {"state": state, "hyper": self.hyper.decode(), "groups": groups})

    def adopt(self, contents: Contents) -> None:
        """Becomes the captured replica. This rank's own hyper-parameters stay its own."""
        mine = (*self.parameters, *self._frozen, *self.buffers())
        with torch.no_grad():
            for tensor, value in zip(mine, contents.tensors, strict=False):
                tensor.copy_(value)
        for parameter, kept in zip(self.parameters, contents.plain["state"], strict=True):
            state: dict[str, Any] = {}
            before = self.inner.state.get(parameter, {})
            for key, entry in kept.items():
                if "value" in entry:
                    state[key] = entry["value"]
                else:
                    device = parameter.device if entry["beside"] else torch.device("cpu")
                    state[key] = _having(before.get(key), contents.tensors[entry["tensor"]], device)
            if state or parameter in self.inner.state:
                self.inner.state[parameter] = state
        for group, changed in zip(self.inner.param_groups, contents.plain["groups"], strict=True):
            self._kept_by_optimizer |= set(changed)
            group.update(changed)
        self.hyper = contents.plain["hyper"].encode()

    def buffers(self) -> list[torch.Tensor]:
        """The model's buffers, if the model was given."""
        return [] if self._model is None else list(self._model.buffers())

    def _name(self, parameter: torch.Tensor, index: int) -> str:
        return self._names.get(id(parameter), f"parameter {index}")


def _having(tensor: object, value: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor with this value, if it can have it, else a new one: neither keeps what the value lies in alive."""
    if isinstance(tensor, torch.Tensor) and (tensor.shape, tensor.dtype) == (value.shape, value.dtype):
        return tensor.copy_(value)
    return value.to(device, copy=True)


def only_reads_gradients(optimizer: Optimizer) -> bool:
    """Whether `step()` leaves `.grad` untouched, so that it may point at memory all ranks share.

    Known for these classes only: SGD with Nesterov and foreach, for one, adds into the gradient.
    """
    hooks = (*optimizer._optimizer_step_pre_hooks, *optimizer._optimizer_step_post_hooks)
    if hooks or _global_optimizer_pre_hooks or _global_optimizer_post_hooks:
        return False  # a hook may do anything
    if type(optimizer) is SGD:
        return not any(group.get("nesterov") or group.get("fused") for group in optimizer.param_groups)
    return type(optimizer) in (Adam, AdamW) and not any(g.get("fused") for g in optimizer.param_groups)


def _is_constant(value: Any) -> bool:
    """Whether the same object always has the same value: a learning rate in a tensor can change in place."""
    return all(map(_is_constant, value)) if isinstance(value, tuple) else isinstance(value, _CONSTANTS)


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(_is_plain(item) for item in value)
    if hasattr(value, "item"):  # a tensor or a number of numpy's
        return value.numel() == 1 if isinstance(value, torch.Tensor) else True
    return value is None or isinstance(value, (bool, int, float, str))


def _plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value.item() if hasattr(value, "item") else value
