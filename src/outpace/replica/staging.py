"""Copies between a replica's tensors and shared memory: gradients and weights go down, results come up.

Owns devices, streams and pinned memory; all other code copies through this. There are two kinds: `HostStaging` if the
parameters are in host memory, where nothing is copied twice, and `StreamStaging` if a device computes.

A device executes asynchronously, in the order of a stream. Tensors are gathered on the compute stream into one flat
buffer for each dtype, and a side stream moves that buffer. These waits keep the order, each for one reason:

    down   side waits for compute        the buffer is filled before it is copied
           host waits for the copy       a row is whole before it is announced: the only wait of a step
    up     side waits for compute        the buffer is no longer read
           compute waits for the copy    the result is there before the optimizer reads it
           host waits for the copy       before the shared result may be overwritten; usually the next copy down, which
                                         comes after it on the side stream, has waited for it already
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import torch

from outpace.interface import Tensors
from outpace.replica.pinned import is_reached, pinned_like, release, say_once
from outpace.vector import ALIGN_BYTES, fill

BATCH_BYTES = 1 << 25  #: what `host` and `put` move at once, which takes as much device memory


class Copy(NamedTuple):
    """A tensor, and the value in host memory that it will get."""

    target: torch.Tensor
    value: torch.Tensor


class Staging(Protocol):
    is_shared: bool  #: `up` returns the very tensors that it was given

    @property
    def is_reading(self) -> bool:
        """Whether a device may still read what was given to `up`."""

    def down(self, places: Tensors, values: Tensors, present: Sequence[int] = (), scale: float = 1.0) -> None:
        """Starts writing values, times `scale`, into places in host memory. Where `present` is 0 it writes zeros."""

    def landed(self) -> None:
        """Returns when everything that went down has been written."""

    def up(self, values: Tensors, like: Tensors) -> Tensors:
        """Values from host memory, on the devices of `like`; valid until the next such call for tensors like these."""

    def until_read(self) -> None:
        """Returns when no device reads what was given to `up` any more."""

    def host(self, values: Tensors) -> Tensors:
        """The values in host memory: copies, unless they are there already."""

    def put(self, copies: Iterable[Copy]) -> None:
        """Copies from host memory into tensors on any device."""

    def register(self, views: Tensors, memory: torch.Tensor) -> None:
        """Announces that these views of host memory will go down or come up often."""

    def close(self) -> None:
        """To be called before registered memory is freed."""


def staging_for(parameters: Tensors) -> Staging:
    return HostStaging() if all(p.device.type == "cpu" for p in parameters) else StreamStaging()


class HostStaging:
    """For parameters in host memory."""

    is_shared = True
    is_reading = False

    down = staticmethod(fill)

    def landed(self) -> None:
        """Nothing to wait for: `down` has written everything."""

    def up(self, values: Tensors, like: Tensors) -> Tensors:
        return values

    def until_read(self) -> None:
        """Nothing to wait for: no device reads."""

    def host(self, values: Tensors) -> Tensors:
        return values

    def put(self, copies: Iterable[Copy]) -> None:
        for target, value in copies:
            target.copy_(value)

    def register(self, views: Tensors, memory: torch.Tensor) -> None:
        """Not needed."""

    def close(self) -> None:
        """Nothing to release."""


class Piece(NamedTuple):
    """What one copy moves: a part of a flat buffer, and its place in host memory."""

    flat: torch.Tensor
    host: torch.Tensor


class Flat:
    """The tensors of one device and dtype side by side in one buffer, laid out as in a row."""

    def __init__(self, like: dict[int, torch.Tensor]) -> None:
        first = next(iter(like.values()))
        self.device, self.indices = first.device, list(like)
        self.offsets: list[int] = []
        step, end = ALIGN_BYTES // first.element_size(), 0
        for tensor in like.values():
            self.offsets.append(end)
            end += -(-tensor.numel() // step) * step
        self.memory = torch.zeros(end, dtype=first.dtype, device=first.device)  # zero between tensors, as rows are
        self.views = self.views_of(self.memory, list(like.values()))
        self._bounce: tuple[torch.Tensor, list[torch.Tensor]] | None = None

    def views_of(self, memory: torch.Tensor, like: Tensors) -> list[torch.Tensor]:
        places = zip(self.offsets, like, strict=True)
        return [memory[offset : offset + t.numel()].view(t.shape) for offset, t in places]

    def bounce(self) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """A copy of the buffer in host memory, pinned if possible, for places with another layout or not registered."""
        if self._bounce is None:
            memory = pinned_like(self.memory)
            self._bounce = memory, self.views_of(memory, self.views)
        return self._bounce

    def pieces(self, places: Tensors) -> list[Piece]:
        """The fewest copies between this buffer and places that are views of one memory."""
        found: list[tuple[int, int, int]] = []  # begin and end in elements of this buffer, and offset in that memory
        for offset, view, index in zip(self.offsets, self.views, self.indices, strict=True):
            there, end = int(places[index].storage_offset()), offset + view.numel()
            if found and there - found[-1][2] == offset - found[-1][0]:
                found[-1] = (found[-1][0], end, found[-1][2])
            elif view.numel():
                found.append((offset, end, there))
        first = places[self.indices[0]]
        return [
            Piece(self.memory[begin:end], first.as_strided((end - begin,), (1,), there)) for begin, end, there in found
        ]


class Lane:
    """The side stream of one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.Stream(device=device)
        self._end: Any = None  # of the last copy

    def __enter__(self) -> None:
        """Copies inside the context run on the side stream, after everything queued on the current one."""
        self._index = torch.accelerator.current_device_index()
        self._current = torch.accelerator.current_stream(self._device)
        self._wait_for_compute()
        torch.accelerator.set_stream(self._stream)

    def __exit__(self, *_: object) -> None:
        self._end = self._stream.record_event()
        torch.accelerator.set_stream(self._current)
        torch.accelerator.set_device_index(self._index)

    def _wait_for_compute(self) -> None:
        self._stream.wait_stream(self._current)

    def let_compute_wait(self) -> None:
        """Makes the compute stream wait for the last copy. The host goes on."""
        self._current.wait_event(self._end)

    def let_host_wait(self) -> None:
        """Makes the host wait for the last copy, and so for all before it."""
        self._end.synchronize()


class StreamStaging:
    """For parameters on one or more devices."""

    is_shared = False

    def __init__(self) -> None:
        self._lanes: dict[torch.device, Lane] = {}
        self._vectors: dict[tuple[Any, ...], list[Flat]] = {}  # by shapes, dtypes and devices
        self._registered: dict[int, tuple[Tensors, torch.Tensor]] = {}  # by the identity of the views
        self._pieces: dict[tuple[int, int], list[Piece]] = {}
        self._writing: set[Lane] = set()  # those with copies down under way
        self._bounced: list[tuple[Tensors, Tensors]] = []  # places, and what to copy there from bounce buffers
        self._reading: set[Lane] = set()

    # -- down ------------------------------------------------------------------------------------------------------

    def down(self, places: Tensors, values: Tensors, present: Sequence[int] = (), scale: float = 1.0) -> None:
        self.landed()
        for flat in self._flats(values):
            self._gather(flat, values, present, scale)
            pieces = self._direct(flat, places)
            if not pieces:
                memory, views = flat.bounce()
                pieces = [Piece(flat.memory, memory)]
                self._bounced.append(([places[i] for i in flat.indices], views))
            lane = self._lane(flat.device)
            with lane:
                for piece in pieces:
                    piece.host.copy_(piece.flat, non_blocking=True)
            self._writing.add(lane)

    def landed(self) -> None:
        for lane in self._writing:
            lane.let_host_wait()
        self._reading -= self._writing  # a lane's copies run in order, so earlier copies up are done, too
        self._writing.clear()
        for places, views in self._bounced:
            torch._foreach_copy_(list(places), list(views))
        self._bounced.clear()

    def _gather(self, flat: Flat, values: Tensors, present: Sequence[int], scale: float) -> None:
        """Runs on the compute stream: the side stream never touches the user's tensors."""
        pairs = [(view, i) for view, i in zip(flat.views, flat.indices, strict=True) if not present or present[i]]
        if len(pairs) < len(flat.views):
            flat.memory.zero_()
        if pairs:
            torch._foreach_copy_([view for view, _ in pairs], [values[i].detach() for _, i in pairs])
        if scale != 1.0:
            flat.memory.mul_(scale)

    # -- up --------------------------------------------------------------------------------------------------------

    @property
    def is_reading(self) -> bool:
        return bool(self._reading)

    def up(self, values: Tensors, like: Tensors) -> Tensors:
        found = list(values)
        for flat in self._flats(like):
            pieces = self._direct(flat, values)
            if not pieces:
                self.until_read()  # the previous copy may still read the bounce buffer
                memory, views = flat.bounce()
                torch._foreach_copy_(views, [values[i] for i in flat.indices])
                pieces = [Piece(flat.memory, memory)]
            lane = self._lane(flat.device)
            with lane:
                for piece in pieces:
                    piece.flat.copy_(piece.host, non_blocking=True)
            lane.let_compute_wait()
            self._reading.add(lane)
            for index, view in zip(flat.indices, flat.views, strict=True):
                found[index] = view
        return found

    def until_read(self) -> None:
        for lane in self._reading:
            lane.let_host_wait()
        self._reading.clear()

    # -- rare copies -----------------------------------------------------------------------------------------------

    def host(self, values: Tensors) -> Tensors:
        """Moves a few tensors at a time, in one copy that the host waits for."""
        found = list(values)
        for indices in _batches(enumerate(values)):
            parts = _moved([values[i].detach() for i in indices], torch.device("cpu"))
            for index, part in zip(indices, parts, strict=True):
                found[index] = part
        return found

    def put(self, copies: Iterable[Copy]) -> None:
        """Likewise. Consumes only as many of the copies at a time as fit into one."""
        for pairs in _batches((copy, copy.target) for copy in copies):
            targets, values = [copy.target for copy in pairs], [copy.value.to(copy.target.dtype) for copy in pairs]
            torch._foreach_copy_(targets, _moved(values, targets[0].device))

    def register(self, views: Tensors, memory: torch.Tensor) -> None:
        self._registered[id(views)] = (views, memory)

    def close(self) -> None:
        self.landed()
        self.until_read()
        for _, memory in self._registered.values():
            release(memory)
        self._registered.clear()
        self._pieces.clear()

    # -- cached ----------------------------------------------------------------------------------------------------

    def _direct(self, flat: Flat, places: Tensors) -> list[Piece]:
        """Direct copies, without a bounce buffer; none if these places were not registered or cannot be."""
        views, memory = self._registered.get(id(places), (None, None))
        if memory is None or views is not places:
            return []
        key = (id(places), id(flat))
        if key not in self._pieces:
            is_alike = places[flat.indices[0]].dtype == flat.memory.dtype
            self._pieces[key] = flat.pieces(places) if is_alike and is_reached(memory, flat.device) else []
        return self._pieces[key]

    def _flats(self, like: Tensors) -> list[Flat]:
        key = tuple((t.dtype, t.device, t.shape) for t in like)
        if key not in self._vectors:
            groups: dict[tuple[torch.dtype, torch.device], dict[int, torch.Tensor]] = {}
            for index, tensor in enumerate(like):
                groups.setdefault((tensor.dtype, tensor.device), {})[index] = tensor
            self._vectors[key] = [Flat(group) for group in groups.values()]
        return self._vectors[key]

    def _lane(self, device: torch.device) -> Lane:
        if device not in self._lanes:
            self._lanes[device] = _lane_of(device)
        return self._lanes[device]


class NoLane(Lane):
    """For parameters in host memory beside others on devices, and for devices without streams: copies block."""

    def __init__(self) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def let_compute_wait(self) -> None:
        pass

    def let_host_wait(self) -> None:
        pass


def _lane_of(device: torch.device) -> Lane:
    if device.type == "cpu":
        return NoLane()
    try:
        return Lane(device)
    except (RuntimeError, NotImplementedError) as error:
        say_once(f"{device.type} has no streams ({error}): copies from and to it block")
        return NoLane()


Item = TypeVar("Item")


def _batches(items: Iterable[tuple[Item, torch.Tensor]]) -> Iterator[list[Item]]:
    """Groups items whose tensors share device and dtype, each with at most `BATCH_BYTES`, or a single tensor."""
    begun: dict[tuple[torch.dtype, torch.device], list[Item]] = {}
    sizes: dict[tuple[torch.dtype, torch.device], int] = {}
    for item, tensor in items:
        kind = (tensor.dtype, tensor.device)
        if begun.get(kind) and sizes[kind] + tensor.nbytes > BATCH_BYTES:
            yield begun.pop(kind)
        sizes[kind] = tensor.nbytes + (sizes[kind] if kind in begun else 0)
        begun.setdefault(kind, []).append(item)
    yield from begun.values()


def _moved(values: Tensors, device: torch.device) -> list[torch.Tensor]:
    """The values on that device, moved in one copy unless they are there already."""
    if values[0].device == device:
        return list(values)
    flat = torch.cat([value.reshape(-1) for value in values]).to(device)
    parts = torch.split(flat, [value.numel() for value in values])
    return [part.view(value.shape) for part, value in zip(parts, values, strict=True)]
