"""A model's buffers: which of them ranks share, when, and how. Owns the rules; holds no memory but the model's.

While training, each rank has its own. At the start all ranks take rank 0's, and a restarted rank takes a snapshot's. In
`synchronize`, running statistics are averaged; of the rest, everything in the model's `state_dict` is taken from the
lowest rank together, so that a queue, its pointer and its mask still fit. Buffers whose shape has changed on any rank
stay each rank's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import reduce

import torch

from outpace.errors import InvalidRules
from outpace.replica.staging import Copy
from outpace.replica.state import overlaps

RULES = ("mean", "max", "first", "own")
_KNOWN = {"running_mean": "mean", "running_var": "mean", "num_batches_tracked": "max"}  # of torch's normalisations


class ModelBuffers:
    """The buffers of one model, as they were when it was wrapped.

    rules: name patterns to one of `RULES`, overriding the default rule; the first that matches counts.
    """

    def __init__(self, model: torch.nn.Module | None, rules: Mapping[str, str] | None = None) -> None:
        self._model = model
        named = self.tensors()
        copied = {name: buffer for name, buffer in named.items() if _can_be_copied(buffer)}
        self._like = {n: torch.empty(b.shape, dtype=b.dtype, device="meta") for n, b in copied.items()}
        chosen = _chosen(rules or {}, named)
        usual = _usual(model)
        self.rules = {name: chosen.get(name, usual[name]) for name in self._like}  #: by name
        for name, rule in chosen.items():
            self._check(name, rule, named[name])
        self._shared = [name for name, rule in self.rules.items() if rule != "own"]

    def tensors(self) -> dict[str, torch.Tensor]:
        return {} if self._model is None else dict(self._model.named_buffers())

    def unchanged(self) -> dict[str, torch.Tensor]:
        """Those that can be copied and still have their original shape and type: what a snapshot holds."""
        now = self.tensors()
        return {name: now[name].detach() for name, like in self._like.items() if _is_still(now.get(name), like)}

    def nbytes(self) -> int:
        """The most that `unchanged` can take in a snapshot, names included."""
        return sum(256 + len(name) + like.numel() * like.element_size() for name, like in self._like.items())

    def beginning_with(self, values: Mapping[str, torch.Tensor]) -> Iterator[Copy]:
        """Copies that take over a snapshot's buffers, as far as they still have this rank's shapes."""
        for name, mine in self.unchanged().items():
            if name in values and _is_still(values[name], self._like[name]):
                yield Copy(mine, values[name])

    def describe(self) -> list[list[object]]:
        """Plain values, for ranks to compare what they will exchange."""
        return [[name, list(self._like[name].shape), str(self._like[name].dtype)] for name in self._shared]

    def to_exchange(self) -> list[torch.Tensor]:
        """What this rank brings to an exchange, always of the same shapes: which buffers count, and the buffers."""
        if not self._shared:
            return []
        now = self.unchanged()
        counts = torch.tensor([name in now for name in self._shared], dtype=torch.uint8, device="cpu")
        missing = (torch.zeros_like(self._like[name], device="cpu") for name in self._shared if name not in now)
        return [counts, *(now[name] if name in now else next(missing) for name in self._shared)]

    def exchanged(self, rows: Sequence[Sequence[torch.Tensor]]) -> Iterator[Copy]:
        """Copies that take over the combination of all ranks' rows, lowest rank first. The same bits on every rank."""
        if not self._shared or not rows:
            return
        counts = torch.stack([row[0] for row in rows]).all(0).tolist()
        now = self.unchanged()
        for index, (name, is_shared) in enumerate(zip(self._shared, counts, strict=True)):
            if is_shared and name in now:
                yield Copy(now[name], _COMBINED[self.rules[name]]([row[1 + index] for row in rows]))

    def __len__(self) -> int:
        return len(self._shared) + bool(self._shared)

    def _check(self, name: str, rule: str, buffer: torch.Tensor) -> None:
        if rule == "own":
            return
        if name not in self._like:
            raise InvalidRules(
                f"buffers: {name} is sparse, quantized or an expanded view, so it cannot be shared: its rule must be "
                '"own"'
            )
        if not {"mean": buffer.is_floating_point(), "max": not buffer.is_complex()}.get(rule, True):
            raise InvalidRules(f"buffers: {name} has dtype {buffer.dtype}, which has no {rule}")


def mean_of(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    wide = torch.zeros(rows[0].shape, dtype=torch.float64, device="cpu")
    for row in rows:
        wide += row
    return wide / len(rows)


_COMBINED: dict[str, Callable[[Sequence[torch.Tensor]], torch.Tensor]] = {
    "mean": mean_of,
    "max": lambda rows: reduce(torch.maximum, rows),
    "first": lambda rows: rows[0],
}


def _chosen(rules: Mapping[str, str], named: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """The rule of each buffer that some pattern matches."""
    chosen: dict[str, str] = {}
    for pattern, rule in rules.items():
        if rule not in RULES:
            raise InvalidRules(f"buffers: {pattern!r} has the rule {rule!r}; choose one of {', '.join(RULES)}")
        matching = [name for name in named if fnmatchcase(name, pattern)]
        if not matching:
            known = f"it has {', '.join(named)}" if named else "it has none, or model= was not given"
            raise InvalidRules(f"buffers: {pattern!r} matches no buffer of the model; {known}")
        for name in matching:
            chosen.setdefault(name, rule)
    return chosen


def _usual(model: torch.nn.Module | None) -> dict[str, str]:
    """The default rules. Buffers outside the `state_dict` can be computed again, so they are not shared."""
    rules: dict[str, str] = {}
    for path, module in () if model is None else model.named_modules():
        for name, buffer in module._buffers.items():
            rule = "own" if name in module._non_persistent_buffers_set else _KNOWN.get(name, "first")
            if rule == "mean" and buffer is not None and not buffer.is_floating_point():
                rule = "first"
            rules[f"{path}.{name}" if path else name] = rule
    return rules


def _can_be_copied(buffer: torch.Tensor) -> bool:
    is_dense = buffer.layout == torch.strided and not buffer.is_quantized
    return is_dense and buffer.device.type != "meta" and not overlaps(buffer)


def _is_still(buffer: torch.Tensor | None, like: torch.Tensor) -> bool:
    return buffer is not None and _can_be_copied(buffer) and (buffer.shape, buffer.dtype) == (like.shape, like.dtype)
