"""An optimizer's state as tensors and plain values, and back. Owns which values can be shared between ranks.

Tensors keep their strides: fused kernels walk through a parameter and its state in memory order, whatever strides say.
"""

from __future__ import annotations

from typing import Any

import torch

from outpace.replica.staging import Copy


class NotShareable(TypeError):
    """A value is not a tensor, a number, or made of these."""


def pack(value: Any, tensors: list[torch.Tensor], parameter: torch.Tensor) -> dict[str, Any]:
    """Encodes a value for `Unpacking`, and appends its tensors to the list. Raises `NotShareable`."""
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_quantized:
            raise NotShareable(f"a tensor of layout {value.layout} and dtype {value.dtype}")
        tensors.append(value.detach())
        is_alike = (value.shape, value.stride()) == (parameter.shape, parameter.stride())
        return {
            "tensor": len(tensors) - 1,
            "beside": value.device == parameter.device,
            "stride": None if is_alike else list(value.stride()),
        }
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return {type(value).__name__: [pack(item, tensors, parameter) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[_plain_key(key), pack(item, tensors, parameter)] for key, item in value.items()]}
    if is_plain(value):
        return {"value": plain(value)}
    raise NotShareable(type(value).__name__)


class Unpacking:
    """Decodes what `pack` encoded. The contents of its tensors are in `copies`, still to be copied."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._tensors = tensors
        self.copies: list[Copy] = []

    def value(self, entry: dict[str, Any], parameter: torch.Tensor, before: Any = None) -> Any:
        """The value; reuses tensors of the value `before` where they fit. Keeps no reference to the packed ones."""
        if "tensor" in entry:
            value = self._tensors[entry["tensor"]]
            device = parameter.device if entry["beside"] else torch.device("cpu")
            stride = parameter.stride() if entry["stride"] is None else tuple(entry["stride"])
            return self._having(before, value, device, stride)
        if "dict" in entry:
            old = before if isinstance(before, dict) else {}
            return {key: self.value(item, parameter, old.get(key)) for key, item in entry["dict"]}
        for kind in (list, tuple):
            if kind.__name__ in entry:
                items = entry[kind.__name__]
                kept = before if isinstance(before, kind) and len(before) == len(items) else [None] * len(items)
                return kind(self.value(item, parameter, one) for item, one in zip(items, kept, strict=True))
        return entry["value"]

    def _having(self, before: Any, value: torch.Tensor, device: torch.device, stride: tuple[int, ...]) -> torch.Tensor:
        """The tensor that was there before, if this value fits into it, else a new one."""
        target: torch.Tensor = before
        if not _is_like(before, (value.shape, value.dtype, stride, device)):
            target = torch.empty_strided(value.shape, stride, dtype=value.dtype, device=device)
            if overlaps(target):
                return value.to(device, copy=True)
        self.copies.append(Copy(target, value))
        return target


def is_plain(value: Any) -> bool:
    """Whether `plain` can encode it: numbers, strings and sequences of them, also numpy's, and one-element tensors."""
    if isinstance(value, (tuple, list)):
        return all(is_plain(item) for item in value)
    if hasattr(value, "item"):  # a tensor or a number of numpy's
        return value.numel() == 1 if isinstance(value, torch.Tensor) else True
    return value is None or isinstance(value, (bool, int, float, str))


def plain(value: Any) -> Any:
    """The value in types that JSON can write."""
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return value.item() if hasattr(value, "item") else value


def overlaps(tensor: torch.Tensor) -> bool:
    """Whether several elements share one place, as in an expanded view: it cannot be written as a whole."""
    return any(step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True))


def _plain_key(key: Any) -> Any:
    if not isinstance(key, (str, int, float, bool, type(None))):
        raise NotShareable(f"a dict with a key of type {type(key).__name__}")
    return key


def _is_like(before: Any, wanted: tuple[object, ...]) -> bool:
    if not isinstance(before, torch.Tensor) or overlaps(before):
        return False
    return (before.shape, before.dtype, before.stride(), before.device) == wanted


def is_constant(value: Any) -> bool:
    """Whether the same object always has the same value: a learning rate in a tensor can change in place."""
    return (
        all(map(is_constant, value))
        if isinstance(value, tuple)
        else isinstance(value, (bool, int, float, str, type(None)))
    )
