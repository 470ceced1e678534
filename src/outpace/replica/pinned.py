"""Host memory that a device reads and writes by itself: registered or pinned. Owns the fallbacks if neither works.

A device copies from and to such memory at the full speed of the bus, while the host goes on. Its pages stay resident,
so the amount is limited (`ulimit -l`). If the limit is reached, training is slower but works.
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

_known: dict[tuple[int, int], bool] = {}  # pages -> whether devices reach them
_ours: dict[tuple[int, int], Any] = {}  # pages registered here -> the runtime that did it


def is_reached(memory: torch.Tensor, device: torch.device) -> bool:
    """Whether the device copies from and to this memory directly. Registers it the first time."""
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
                f"{device.type} does not register shared memory (error {code}), so every copy from and to it goes "
                f"through a pinned buffer, which takes one more pass over the memory. {_MORE}"
            )
    return _known[pages]


def is_pinned(address: int) -> bool:
    """Whether the page at this address is pinned. `Tensor.is_pinned` checks only the beginning of its storage."""
    return torch.frombuffer((ctypes.c_char * 1).from_address(address), dtype=torch.uint8).is_pinned()


def release(memory: torch.Tensor) -> None:
    """Unregisters memory; to be called before it is unmapped."""
    pages = _pages(memory)
    _known.pop(pages, None)
    runtime = _ours.pop(pages, None)
    if runtime is not None:
        runtime.cudaHostUnregister(pages[0])


def pinned_like(tensor: torch.Tensor) -> torch.Tensor:
    """Host memory of the same size, pinned if possible."""
    if tensor.device.type != "cpu":
        try:
            return torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
        except RuntimeError as error:
            why = str(error).partition("\n")[0]
            say_once(
                f"no pinned memory is available ({why}), so copies from and to {tensor.device.type} block. {_MORE}"
            )
    return torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")


@functools.cache
def say_once(what: str) -> None:
    log.warning("%s", what)


@functools.cache
def _runtime(kind: str) -> Any:
    """The runtime of this kind of device, if it has CUDA's calls; else None."""
    cudart = getattr(torch.get_device_module(kind), "cudart", None)
    return None if cudart is None else cudart()


def _pages(memory: torch.Tensor) -> tuple[int, int]:
    start, end = memory.data_ptr(), memory.data_ptr() + memory.nbytes
    return start - start % mmap.PAGESIZE, end + -end % mmap.PAGESIZE
