"""Time that ranks spend in collectives of torch.distributed which are not outpace's: a barrier of a framework, a loss
that is gathered in every step. Owns the wrapping of torch's Python entry points while something is recorded.

In such a call everybody waits for the slowest rank again, whatever the optimizer does. What is called with
`async_op=True`, or from C++ as by DDP, is not seen.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch.distributed as dist

_NAMES = (
    *("all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all", "all_to_all_single"),
    *("barrier", "broadcast", "broadcast_object_list", "gather", "gather_object", "monitored_barrier", "reduce"),
    *("reduce_scatter", "reduce_scatter_tensor", "scatter", "scatter_object_list"),
)
_PLUMBING = ("torch.", "accelerate.", "lightning.fabric.", "lightning.pytorch.strategies.", "outpace.")  #: pass it on

_watchers = 0
_originals: list[tuple[Any, str, Any]] = []
_depth = threading.local()
_waited: dict[str, tuple[int, float]] = {}  #: call site -> calls, seconds


def watch() -> None:
    """From now on calls are measured, until `unwatch` was called as often."""
    global _watchers
    _watchers += 1
    if _watchers > 1 or not dist.is_available():
        return
    for module in (dist, dist.distributed_c10d):
        for name in _NAMES:
            original = getattr(module, name, None)
            if original is not None:
                _originals.append((module, name, original))
                setattr(module, name, _measured(name, original))


def unwatch() -> None:
    global _watchers
    _watchers -= 1
    if _watchers == 0:
        for module, name, original in _originals:
            setattr(module, name, original)
        _originals.clear()
        _waited.clear()


def waited() -> dict[str, tuple[int, float]]:
    """Calls and seconds so far, by what was called and where: "barrier at model_checkpoint.py:622"."""
    return _waited.copy()


def _measured(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*arguments: Any, **options: Any) -> Any:
        if getattr(_depth, "is_inside", False):  # collectives of objects are made of others
            return original(*arguments, **options)
        _depth.is_inside = True
        began = time.monotonic()
        try:
            return original(*arguments, **options)
        finally:
            _depth.is_inside = False
            site = f"{name} at {_site(sys._getframe(1))}"
            calls, seconds = _waited.get(site, (0, 0.0))
            _waited[site] = calls + 1, seconds + time.monotonic() - began

    return call


def _site(frame: FrameType) -> str:
    """Whoever wanted it: not what only passes it on."""
    outer: FrameType | None = frame
    while outer is not None and f"{outer.f_globals.get('__name__', '')}.".startswith(_PLUMBING):
        outer = outer.f_back
    found = outer or frame
    return f"{os.path.basename(found.f_code.co_filename)}:{found.f_lineno}"
