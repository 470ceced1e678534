"""`outpace.record`: a trace of an ordinary training loop. Owns the hooks that see its steps, and changes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import Optimizer

from outpace.errors import OutpaceError
from outpace.job.environment import whereami
from outpace.observe.recorder import LogDir, Recorder, check
from outpace.observe.schema import Header, Pausing, Synchronized, loop_step
from outpace.observe.tensorboard import open_board


def record(optimizer: Optimizer, log_dir: LogDir, *, payload_bytes: int | None = None) -> Recording:
    """Records every step of a loop with torch's DDP, or of any other, to `log_dir/rank-00003.jsonl`.

        outpace.record(optimizer, "runs/x")

    One line, before or after the model is wrapped. For each step it records when this rank's own gradients were ready,
    how long it then waited for the others (under DDP, the rest of `backward`, and what the loop does before it steps)
    and how long `optimizer.step()` took. `outpace trace runs/x` shows the result.

    `recording.loss(loss)`, on what this returns, also records the loss of a step. If `tensorboard` is installed, rank 0
    writes scalars for it to the same directory.

    A new recording overwrites its file. Never blocks or disturbs training, whatever the disk does; raises
    `OutpaceError` here if nothing can be written to `log_dir`. Ends with `close()`, at the end of a `with` block, or
    with the process. `payload_bytes` is what a rank sends to the others, if that is not its trained parameters.

    Times are those of the Python thread. On a GPU they mean little unless the loop waits for it at each step, for
    instance with `loss.item()`. With a model that has buffers (BatchNorm), DDP also waits for rank 0 in `forward`;
    that is taken for computing and hides who is slow, unless DDP is made with `forward_sync_buffers=False`
    (`broadcast_buffers=False` in older torch).
    """
    return Recording(optimizer, log_dir, payload_bytes)


class Recording:
    """A recording that goes on until it is closed."""

    def __init__(
        self, optimizer: Optimizer, log_dir: LogDir, payload_bytes: int | None = None, strategy: str = "ddp"
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise OutpaceError(f"record() takes a torch.optim.Optimizer, not a {type(optimizer).__name__}")
        if getattr(optimizer, "records_itself", False):
            words = "make it with DistributedOptimizer(..., log_dir=...) instead"
            raise OutpaceError(f"a DistributedOptimizer records itself: {words}")
        parameters = trained(optimizer)
        size = sum(p.numel() * p.element_size() for p in parameters) if payload_bytes is None else payload_bytes
        place = whereami()
        header = Header.here(place.rank, place.world, strategy, size)
        check(log_dir, place.rank)
        self._recorder = Recorder(log_dir, header, board=open_board(log_dir, header))
        self._steps = self._pauses = 0
        self._loss: float | None = None  # of the step that is being computed, as the samples
        self._samples: float | None = None
        self._begin = self._ready = self._called = time.monotonic_ns()
        self._hooks: list[Any] = [p.register_post_accumulate_grad_hook(self._gradient) for p in parameters]  # type: ignore[no-untyped-call]
        self._hooks.append(optimizer.register_step_pre_hook(self._step_begins))
        self._hooks.append(optimizer.register_step_post_hook(self._step_ends))

    def loss(self, value: float | torch.Tensor, samples: float | None = None) -> None:
        """Notes the loss of this step, and the size of its mini-batch: call it any time before `optimizer.step()`.

        A tensor on a GPU is waited for. Once the recording has ended, nothing is looked at.
        """
        if not self._recorder.is_open:
            return
        try:
            self._loss = float(value.detach() if isinstance(value, torch.Tensor) else value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise OutpaceError(f"loss() takes one number, or a tensor of one element: {error}") from error
        self._samples = samples

    @contextmanager
    def pause(self) -> Iterator[None]:
        """A context in which the time is neither computing nor waiting in a step: the ranks meet in another way."""
        began = time.monotonic_ns()
        self._recorder.add((Pausing, "synchronize", began))
        try:
            yield
        finally:
            self._pauses += 1
            self._begin = time.monotonic_ns()
            self._recorder.add((Synchronized, self._pauses, began, self._begin))

    def close(self) -> None:
        """Ends the recording and takes the hooks away. Waits until all is written, at most two seconds."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._recorder.close()

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _gradient(self, _: torch.Tensor) -> None:
        """The last of these before the step is when all gradients are there. DDP does its waiting after it."""
        self._ready = time.monotonic_ns()

    def _step_begins(self, *_: object) -> None:
        self._called = time.monotonic_ns()

    def _step_ends(self, *_: object) -> None:
        end, begin, called = time.monotonic_ns(), self._begin, self._called
        ready = self._ready if begin <= self._ready <= called else called  # a loop may set gradients by itself
        self._steps += 1
        self._begin = end
        waited_s, apply_s = (called - ready) / 1e9, (end - called) / 1e9
        times = (begin, ready, end, waited_s, apply_s)
        self._recorder.add_and_show((loop_step, self._steps, *times, self._loss, self._samples))
        self._loss = self._samples = None


def trained(optimizer: Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
