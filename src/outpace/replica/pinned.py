"""Host memory that a device reads and writes by itself: registered, or pinned. Owns what is done where neither is had.

A device copies from and to such memory while the host goes on, at the full speed of the bus. Pages of it stay resident,
so that how much there may be is limited (`ulimit -l`). Whatever is refused costs time, never the training.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import mmap
from typing import Any

import torch

log = logging.getLogger("outpace")

_PORTABLE = 1  # for all devices of this process: a flag of CUDA's runtime
_ALREADY = 712  # error of CUDA's runtime: this memory is registered
_MORE = "Allow more locked memory: `ulimit -l unlimited`, or `--ulimit memlock=-1` for a container"

_known: dict[tuple[int, int], bool] = {}  # pages, and whether devices reach them
_ours: dict[tuple[int, int], Any] = {}  # those that were registered here, and with which runtime


def is_reached(memory: torch.Tensor, device: torch.device) -> bool:
    """Whether the device copies from and to this memory without help. Registers it the first time it is asked for."""
    runtime, pages = _runtime(device.type), _pages(memory)
    if runtime is None or not memory.nbytes:
        return False
    if pages not in _known:
        code = int(runtime.cudaHostRegister(pages[0], pages[1] - pages[0], _PORTABLE))
        _known[pages] = not code or (code == _ALREADY and is_pinned(pages[0]) and is_pinned(pages[1] - 1))
        if not code:
            _ours[pages] = runtime
        if not _known[pages]:
            say_once(
                f"{device.type} does not register shared memory (error {code}), so that every copy from and to it goes "
                f"through a pinned buffer, which takes one more pass over the memory. {_MORE}"
            )
    return _known[pages]


def is_pinned(address: int) -> bool:
    """`Tensor.is_pinned` is about the beginning of its storage, which may be much larger."""
    return torch.frombuffer((ctypes.c_char * 1).from_address(address), dtype=torch.uint8).is_pinned()


def release(memory: torch.Tensor) -> None:
    """Before it is unmapped."""
    pages = _pages(memory)
    _known.pop(pages, None)
    runtime = _ours.pop(pages, None)
    if runtime is not None:
        runtime.cudaHostUnregister(pages[0])


def pinned_like(tensor: torch.Tensor) -> torch.Tensor:
    """Host memory of that size, pinned if that is to be had."""
    if tensor.device.type != "cpu":
        try:
            return torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
        except RuntimeError as error:
            why = str(error).partition("\n")[0]
            say_once(
                f"no pinned memory is to be had ({why}), so that copies from and to {tensor.device.type} block. {_MORE}"
            )
    return torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")


@functools.cache
def say_once(what: str) -> None:
    log.warning("%s", what)


@functools.cache
def _runtime(kind: str) -> Any:
    """CUDA's runtime, or one that has its calls, of devices of this kind; None if there is none."""
    cudart = getattr(torch.get_device_module(kind), "cudart", None)
    return None if cudart is None else cudart()


def _pages(memory: torch.Tensor) -> tuple[int, int]:
    start, end = memory.data_ptr(), memory.data_ptr() + memory.nbytes
    return start - start % mmap.PAGESIZE, end + -end % mmap.PAGESIZE
