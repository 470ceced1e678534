"""One rank's model and optimizer: gradients out, results in. Owns everything that touches user tensors.

Must never decide what to apply or when: the engine hands it rounds in order, and it applies them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import torch
from torch.optim import Optimizer

from outpace.codecs import Codec
from outpace.errors import OutpaceError, ParametersChanged, SparseGradient
from outpace.interface import Contents, Mixed, Result, Tensors, Work
from outpace.protocol.round import Round
from outpace.protocol.rules import Rules
from outpace.replica import ownership
from outpace.replica.buffers import ModelBuffers, mean_of
from outpace.replica.inner_step import (
    StepLength,
    clip_if_finite,
    global_hooks_silenced,
    only_reads_gradients,
    same_bits_with_any_threads,
)
from outpace.replica.look_ahead import LookAhead
from outpace.replica.staging import Copy, staging_for
from outpace.replica.state import NotShareable, Unpacking, is_constant, is_plain, pack, plain

log = logging.getLogger("outpace")

_COUNTER = attrgetter("_version")
_NOT_HYPER = ("params", "param_names")
RoundHook = Callable[[Round], None]


class OptimizerReplica:
    """A torch optimizer and its model, as engines see them. A strategy may use a subclass."""

    def __init__(self, inner: Optimizer, model: torch.nn.Module | None, on_round: RoundHook | None = None) -> None:
        self.inner = inner
        self.version = 0
        self._model, self._on_round = model, on_round
        self.model_buffers = ModelBuffers(model)
        self._names = {id(p): name for name, p in model.named_parameters()} if model is not None else {}
        self._groups = [list(group["params"]) for group in inner.param_groups]
        self.parameters = [p for group in self._groups for p in group if p.requires_grad]
        self._agreed = [p.dtype for p in self.parameters]
        self._dtypes = set(self._agreed)
        self.staging = staging_for(self.parameters)  #: copies between its tensors and shared memory
        chosen = {id(p) for p in self.parameters}
        self._frozen_in_groups = [p for group in self._groups for p in group if id(p) not in chosen]
        models = () if model is None else model.parameters()
        others = {id(p): p for p in (*self._frozen_in_groups, *models) if id(p) not in chosen}
        #: parameters that this optimizer does not train, of its own and of the model, frozen or not
        self.others = {self._name(p, index): p for index, p in enumerate(others.values())}
        self.lost: torch.Tensor | None = None  #: a parameter that a newer optimizer steps
        ownership.claim(self, self.parameters, self.others.values())
        self.codec = Codec()  #: of its contributions
        self.max_grad_norm: float | None = None  #: for local steps
        self.rules: Rules | None = None  #: set by its engine
        self.step_length = StepLength(inner)  #: scales its steps to those of allreduce
        self.look = LookAhead(self.parameters)  #: from the weights to where gradients are computed
        self.refused = 0  #: local steps left out because a gradient was not finite
        self._present = b""  # parameters with a gradient in the last row
        self.note_writes()
        self.is_torn = False  #: interrupted while changing: neither the old version nor the new one
        self._is_known_to_fit = False  # whether the optimizer's state can be shared; its first step shows
        self._kept_by_optimizer: set[str] = set()  # group entries that the optimizer changes itself, like its state
        self._private: list[torch.Tensor] | None = None
        self._written: tuple[list[Any], bytes] = ([], b"")  # the last hyper-parameters, and their encoding
        self._parsed: tuple[bytes, list[dict[str, Any]]] = (b"", [])
        self.hyper = self._own_hyper()  #: hyper-parameters of the last round applied; before the first, rank 0's

    def named_parameters(self) -> list[tuple[str, torch.Tensor]]:
        """The trained parameters with names for error messages."""
        return [(self._name(p, index), p) for index, p in enumerate(self.parameters)]

    def extra_bytes(self) -> int:
        """Size of what a snapshot holds besides parameters and optimizer state."""
        others: int = sum(256 + len(name) + p.numel() * p.element_size() for name, p in self.others.items())
        return others + self.model_buffers.nbytes()

    def release(self) -> None:
        """Gives up its parameters: another optimizer may step them from now on."""
        self.look.go_back()
        ownership.release(self, (*self.parameters, *self.others.values()))

    def check_unchanged(self) -> None:
        """Raises if parameters were added to or removed from the inner optimizer."""
        groups = self.inner.param_groups
        same = len(groups) == len(self._groups) and all(
            len(group["params"]) == len(mine) and all(map(is_, group["params"], mine))
            for group, mine in zip(groups, self._groups, strict=True)
        )
        if not same or any(p.requires_grad for p in self._frozen_in_groups):
            raise ParametersChanged(
                "the optimizer's parameters have changed since DistributedOptimizer was made, or one was unfrozen. "
                "Contributions of all ranks must have one shape: add and unfreeze parameters before, or make a new "
                "DistributedOptimizer on all ranks"
            )
        if self.lost is not None and ownership.owner_of(self.lost) is not None:
            raise ParametersChanged(
                f"parameter {self._name(self.lost, 0)} is also trained by a DistributedOptimizer that was made later. "
                "The ranks would apply the steps of the two in different orders: give each parameter to one of them, "
                "or finish() this one first"
            )

    def check_not_converted(self) -> None:
        """Raises if a parameter's type has changed since the ranks agreed on it. Its device may change."""
        for (name, parameter), dtype in zip(self.named_parameters(), self._agreed, strict=True):
            if parameter.dtype != dtype:
                raise ParametersChanged(
                    f"{name} was {dtype} when DistributedOptimizer was made, and is {parameter.dtype} now, but the "
                    "ranks have agreed on the former. Convert the model before you wrap its optimizer"
                )

    def note_writes(self) -> None:
        """Marks all writes to the weights so far as known to all ranks."""
        self._counters = list(map(_COUNTER, self.parameters))

    def written_by_others(self) -> list[int]:
        """Indices of the parameters written since then, by the version counters that torch keeps for autograd."""
        now = list(map(_COUNTER, self.parameters))
        return [] if now == self._counters else [i for i, count in enumerate(now) if count != self._counters[i]]

    # -- contributing ----------------------------------------------------------------------------------------------

    def deposit(self, row: Tensors, work: Work, onto: Tensors | None = None) -> tuple[bytes, bytes]:
        """Copies all gradients into the row, and returns which parameters had one, and the hyper-parameters.

        Parameters without a gradient contribute zeros. With `onto`, the row becomes the sum of both.
        """
        present = self._copy_gradients(row, work.scale)
        hyper = self._own_hyper()
        if not self.staging.is_shared:
            self.staging.landed()
        if self.rules is None or self.rules.codec != "none":
            self.codec.deposited(work.step, row, present)
        if onto is not None:
            torch._foreach_add_(list(row), list(onto))
            present = bytes(map(int.__or__, present, self._present))
        self._present = present
        return present, hyper

    def _copy_gradients(self, row: Tensors, scale: float) -> bytes:
        """Begins to copy; staging knows when it is done. Returns which parameters have a gradient."""
        self.check_unchanged()
        gradients, present = [], []
        for index, parameter in enumerate(self.parameters):
            gradient = parameter.grad
            present.append(gradient is not None)
            if gradient is None:
                gradient = parameter  # stands for zeros of its shape
            elif gradient.layout != torch.strided:
                raise SparseGradient(
                    f"parameter {self._name(parameter, index)} has a sparse gradient, but outpace averages dense ones "
                    "only. Use Embedding(sparse=False), or keep that parameter out of this optimizer"
                )
            gradients.append(gradient)
        marks = bytes(present)
        self.staging.down(row, gradients, marks, scale)
        return marks

    # -- local steps, for strategies that average weights ----------------------------------------------------------

    def local_step(self, work: Work) -> None:
        """Takes the inner optimizer's step with this rank's own gradients; not if one of them is not finite."""
        self.check_unchanged()
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        if gradients and work.scale != 1.0:
            torch._foreach_mul_(gradients, work.scale)
        if not clip_if_finite(self.parameters, self.max_grad_norm):
            self.refused += 1
            if self.refused & (self.refused - 1) == 0:  # the first, second, fourth, ...: not every one
                log.warning("a gradient is not finite: this rank skips its step, %d times so far", self.refused)
            return
        with self._changing(), self.step_length.of_own_step(1 if self.rules is None else self.rules.world):
            self._own_step()
        self._check_once_that_state_fits()

    def _own_step(self) -> None:
        self._inner_step()

    def _inner_step(self) -> None:
        with global_hooks_silenced():
            self.inner.step()

    # -- publishing, for strategies that average weights -----------------------------------------------------------

    def published(self) -> list[torch.Tensor]:
        """What averaging strategies publish: the weights."""
        return [p.detach() for p in self.parameters]

    def become(self, mean: Mixed) -> None:
        """Takes over a mean, unless there was nobody else to average with."""
        if mean.tensors is not None:
            mine = self.published()
            torch._foreach_copy_(mine, list(self.staging.up(mean.tensors, mine)))

    # -- what all ranks exchange in `synchronize` and `finish` ----------------------------------------------------

    def to_exchange(self) -> list[torch.Tensor]:
        return [*self.model_buffers.to_exchange(), *self._diverging()]

    def exchange(self, rows: Sequence[Tensors]) -> None:
        count = len(self.model_buffers)
        with self._changing():
            self.look.go_back()
            means = (Copy(mine, mean_of([row[count + i] for row in rows])) for i, mine in enumerate(self._diverging()))
            self.staging.put(chain(self.model_buffers.exchanged([row[:count] for row in rows]), means))
            self._on_exchanged()

    def _diverging(self) -> list[torch.Tensor]:
        """What differs between ranks during training, besides buffers: an exchange averages it."""
        return []

    def _on_exchanged(self) -> None:
        """Called when all ranks have become equal."""

    # -- contributions that codecs keep track of -------------------------------------------------------------------

    def give_up(self, step: int) -> bool:
        """Called when a contribution was not accepted. True if the codec keeps it and adds it to a later one."""
        is_kept = step in self.codec.in_flight()
        self.codec.dropped(step)
        return is_kept

    def keep_only(self, steps: Collection[int]) -> None:
        """Called when rounds were skipped: of this rank's contributions, only these can still be applied."""
        for step in self.codec.in_flight():
            if step not in steps:
                self.codec.forget(step)

    def extra_state(self) -> dict[str, Any]:
        """What a checkpoint needs besides the weights and the inner optimizer's state. Local."""
        return {"codec": self.codec.state()}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        self.codec.load_state(state["codec"])
        for step in self.codec.in_flight():
            self.codec.forget(step)  # it will be contributed again, as a whole

    # -- applying --------------------------------------------------------------------------------------------------

    def apply(self, result: Result) -> None:
        """Takes the inner optimizer's step with the round's gradient and hyper-parameters, then restores its own."""
        self.hyper = result.hyper or self.hyper
        for step in result.mine:
            self.codec.applied(step, result.gradients)
        for step in result.refused:
            self.codec.dropped(step)
        with self._changing(), same_bits_with_any_threads(self._dtypes):
            if not result.round.void:
                ahead = result.round.ahead
                if ahead or not self.look.is_idle:
                    self.look.begin_step(ahead if self.step_length.has_momentum else 0.0)
                self._step_with(result)
            self.version += 1
        self._check_once_that_state_fits()
        if self._on_round is not None:
            self._on_round(result.round)

    def begin_computing(self) -> None:
        """Moves the model ahead of the weights, if there is late work: the next gradients are computed there."""
        if self.look.is_due:
            with self._changing():
                self.look.go()

    def _length_of(self, applied: Round) -> AbstractContextManager[None]:
        if self.rules is None:
            return nullcontext()
        return self.step_length.of_round(applied.size(self.rules.of_sums), applied.stride, self.rules.rest_follows)

    def _step_with(self, result: Result) -> None:
        own = [p.grad for p in self.parameters]
        with self._hyper_parameters(), self._length_of(result.round):
            try:
                gradients = self._readable(result)
                for parameter, gradient, is_there in zip(self.parameters, gradients, result.present, strict=True):
                    parameter.grad = gradient if is_there else None
                self._inner_step()
            finally:
                for parameter, own_gradient in zip(self.parameters, own, strict=True):
                    parameter.grad = own_gradient

    def _readable(self, result: Result) -> Tensors:
        """The shared result itself if the optimizer is known only to read it, else a private copy with the parameters'
        strides: fused kernels walk through both in memory order."""
        clip, gradients = result.round.clip, result.gradients
        if not self.staging.is_shared:
            gradients = self.staging.up(gradients, self.parameters)
            private = [
                g if g.stride() == p.stride() else torch.empty_like(p).copy_(g)
                for g, p in zip(gradients, self.parameters, strict=True)
            ]
        elif clip == 1.0 and only_reads_gradients(self.inner):
            return gradients
        else:
            private = self._private = self._private or [torch.empty_like(p) for p in self.parameters]
            torch._foreach_copy_(private, list(gradients))
        if clip != 1.0:
            torch._foreach_mul_(private, clip)
        return private

    # -- hyper-parameters ------------------------------------------------------------------------------------------

    def _own_hyper(self) -> bytes:
        """This rank's hyper-parameters; encoded again only if one of them is a different object from last time."""
        values = [value for group in self.inner.param_groups for key, value in group.items() if key not in _NOT_HYPER]
        seen, written = self._written
        if len(values) == len(seen) and all(map(is_, values, seen)):
            return written
        groups = [
            {key: plain(value) for key, value in group.items() if key not in _NOT_HYPER and is_plain(value)}
            for group in self.inner.param_groups
        ]
        written = json.dumps(groups).encode()
        self._written = (values if all(map(is_constant, values)) else [], written)
        return written

    def _parsed_hyper(self) -> list[dict[str, Any]]:
        """The round's hyper-parameters, parsed only when they change."""
        if self._parsed[0] != self.hyper:
            self._parsed = (self.hyper, json.loads(self.hyper))
        return self._parsed[1]

    @contextmanager
    def _hyper_parameters(self) -> Any:
        """Puts the round's hyper-parameters in place of this rank's own. Schedulers only ever see the latter."""
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
        """Weights and optimizer state; as the base, buffers and the parameters that no optimizer trains."""
        others = {name: p.detach() for name, p in self.others.items() if ownership.owner_of(p) is None}
        tensors = list(self._weights_to_begin_with())
        state = [self._packed_state(self.inner.state.get(p, {}), tensors, p) for p in self.parameters]
        named: dict[str, Any] = {key: value for key, value in self.inner.state.items() if isinstance(key, str)}  # type: ignore[misc]
        shared = self._packed_state(named, tensors, self.parameters[0]) if named else {}
        groups = [{key: plain(g[key]) for key in self._kept_by_optimizer if key in g} for g in self.inner.param_groups]
        kept = {"state": state, "shared": shared, "hyper": self.hyper.decode(), "groups": groups}
        return Contents(tensors, kept, {**others, **self.model_buffers.unchanged()})

    def adopt(
        self, contents: Contents, version: int, is_beginning: bool, is_whole: Callable[[], bool] = lambda: True
    ) -> bool:
        """Becomes the captured replica, of that version. This rank keeps its own hyper-parameters.

        Takes over the base only when this rank starts, because rounds do not change it. The contents are read in place;
        if they turn out to have been overwritten meanwhile, this replica is torn until it adopts others.
        """
        self.is_torn = True
        with torch.no_grad():
            self._become(contents)
            if is_beginning:
                self._begin_with(contents.base)
        if is_whole():
            self.version, self.is_torn = version, False
        return not self.is_torn

    def _become(self, contents: Contents) -> None:
        unpacking = Unpacking(contents.tensors)
        for parameter, kept in zip(self.parameters, contents.plain["state"], strict=True):
            before = self.inner.state.get(parameter, {})
            state = {key: unpacking.value(entry, parameter, before.get(key)) for key, entry in kept.items()}
            if state or parameter in self.inner.state:
                self.inner.state[parameter] = state
        for key, entry in contents.plain["shared"].items():
            self.inner.state[key] = unpacking.value(entry, self.parameters[0], self.inner.state.get(key))
        weights = map(Copy, self.parameters, contents.tensors)
        self.staging.put(chain(weights, unpacking.copies))
        for group, changed in zip(self.inner.param_groups, contents.plain["groups"], strict=True):
            self._kept_by_optimizer |= set(changed)
            group.update(changed)
        self.hyper = contents.plain["hyper"].encode()
        self.on_weights_replaced()

    def on_weights_replaced(self) -> None:
        """Called when the weights were replaced, so that nothing remembered about earlier ones applies any more."""
        self.look.begin_anew()

    def _begin_with(self, base: dict[str, torch.Tensor]) -> None:
        others = (
            Copy(parameter, base[name])
            for name, parameter in self.others.items()
            if name in base and ownership.shares(self, parameter)
        )
        self.staging.put(chain(others, self.model_buffers.beginning_with(base)))

    def _weights_to_begin_with(self) -> list[torch.Tensor]:
        """The weights that a snapshot holds."""
        return self.look.weights()

    def _packed_state(self, state: dict[str, Any], tensors: list[torch.Tensor], parameter: Any) -> dict[str, Any]:
        packed = {}
        for key, value in state.items():
            try:
                packed[key] = pack(value, tensors, parameter)
            except NotShareable as what:
                raise OutpaceError(
                    f"{type(self.inner).__name__} keeps {key!r} in its state, which contains {what}: that cannot be "
                    "shared between ranks. Use an optimizer whose state is tensors, numbers, lists and dicts of them"
                ) from None
        return packed

    def _check_once_that_state_fits(self) -> None:
        """Raises at the first step, and not only when a rank needs a snapshot."""
        if not self._is_known_to_fit:
            self.capture()
            self._is_known_to_fit = True

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Around changes to the replica: if interrupted, it stays torn."""
        self.is_torn = True
        yield
        self.is_torn = False

    def _name(self, parameter: torch.Tensor, index: int) -> str:
        return self._names.get(id(parameter), f"parameter {index}")
