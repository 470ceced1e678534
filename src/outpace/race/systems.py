"""What takes part in a race: torch's own systems and outpace's strategies. Owns their differences only.

A system is made by name, in each rank's own process, and lives as long as one training.
"""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from inspect import signature
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from outpace.errors import InvalidRules
from outpace.microbatches import MicrobatchRound
from outpace.observe.record import Recording
from outpace.optimizer import DistributedOptimizer
from outpace.spec import build
from outpace.strategies import STRATEGIES, Strategy

TIMEOUT_S = 300.0  #: the longest that ranks of a race wait for one that is silent

Pieces = Iterable[Any]  #: micro-batches


class System(ABC):
    title: str  #: what people read for its name
    in_step = True  #: whether all ranks must make the same number of steps
    polls = False  #: whether it may end a round of micro-batches early
    model: nn.Module  #: what the forward pass goes through, once started

    def check(self, ranks: int) -> None:
        """Raises what is wrong with this system among so many ranks, before any process is started."""
        return

    @abstractmethod
    def simulated(self) -> str | Strategy:
        """The strategy that learns as it does, for simulated time."""

    @abstractmethod
    def start(self, model: nn.Module, optimizer: Optimizer, log_dir: Path) -> None:
        """Wraps them, and begins to record. Blocks until every rank is there."""

    @abstractmethod
    def rounds(self, pieces: Pieces, parts: int) -> Iterator[Pieces]:
        """The micro-batches of each step, with gradients cleared before. A round of some systems may end early."""

    @abstractmethod
    def step(self, loss: float, samples: int) -> None:
        """After the gradients of a round of so many samples, whose loss is told for the recording."""

    @abstractmethod
    def finish(self) -> None:
        """After the last step. Returns when this rank's weights are final."""

    def close(self) -> None:
        """After `finish`, gives back what is left."""
        return


class TorchDDP(System):
    """torch's DistributedDataParallel on Gloo, as it comes."""

    title = "torch DDP"
    name = "ddp"  #: its name in recordings

    def simulated(self) -> str | Strategy:
        return "allreduce"

    def start(self, model: nn.Module, optimizer: Optimizer, log_dir: Path) -> None:
        if sys.platform.startswith("linux"):
            # All ranks are here. Without this Gloo looks for the host's own name, which need not resolve.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
        self._optimizer = optimizer
        self.model = DistributedDataParallel(model)
        self._recording = Recording(optimizer, log_dir, strategy=self.name)
        with self._recording.pause():
            dist.barrier()

    def rounds(self, pieces: Pieces, parts: int) -> Iterator[Pieces]:
        for piece in pieces:
            self._optimizer.zero_grad()
            yield (piece,)

    def step(self, loss: float, samples: int) -> None:
        """The ranks have met in the backward pass."""
        self._recording.loss(loss, samples)
        self._optimizer.step()

    def finish(self) -> None:
        self._recording.close()

    def close(self) -> None:
        """Leaves the group to the end of the process: destroyed while the wrapped model lives, Gloo may hang."""
        dist.barrier()


class TorchPostLocalSGD(TorchDDP):
    """torch's own post-local SGD: after a warm-up as DDP, ranks step alone and average their weights now and then."""

    title = "torch post-local SGD"
    name = "torch-post-local-sgd"

    def __init__(self, period: int = 4, warmup: int = 16) -> None:
        if not isinstance(period, int) or period < 2 or not isinstance(warmup, int) or warmup < 0:
            raise InvalidRules(f"period={period!r} must be a whole number from 2, warmup={warmup!r} one from 0")
        self._period, self._warmup = period, warmup

    def simulated(self) -> str | Strategy:
        return f"post-local-sgd:every={self._period},start={max(1, self._warmup)}"

    def start(self, model: nn.Module, optimizer: Optimizer, log_dir: Path) -> None:
        super().start(model, optimizer, log_dir)
        state = PostLocalSGDState(  # type: ignore[no-untyped-call]
            process_group=None, subgroup=None, start_localSGD_iter=self._warmup, post_local_gradient_allreduce=False
        )
        self.model.register_comm_hook(state, post_localSGD_hook)  # type: ignore[operator]
        self._averager = PeriodicModelAverager(period=self._period, warmup_steps=self._warmup)

    def step(self, loss: float, samples: int) -> None:
        super().step(loss, samples)
        with self._recording.pause():
            self._averager.average_parameters(self.model.parameters())


class Outpace(System):
    in_step = False

    def __init__(self, name: str, strategy: Strategy) -> None:
        self.title, self._strategy, self.polls = name, strategy, strategy.polls

    def check(self, ranks: int) -> None:
        self._strategy.rules(ranks)

    def simulated(self) -> str | Strategy:
        return self._strategy

    def start(self, model: nn.Module, optimizer: Optimizer, log_dir: Path) -> None:
        self.model = model
        self._optimizer = DistributedOptimizer(optimizer, self._strategy, model, log_dir=log_dir, timeout_s=TIMEOUT_S)

    def rounds(self, pieces: Pieces, parts: int) -> Iterator[MicrobatchRound]:
        return self._optimizer.rounds(pieces, microbatches=parts)

    def step(self, loss: float, samples: int) -> None:
        """Contributes, and waits as the strategy says. `rounds` has counted the samples."""
        self._optimizer.step(loss=loss)

    def finish(self) -> None:
        self._optimizer.finish()


BASELINES: dict[str, Callable[..., System]] = {"ddp": TorchDDP, "torch-post-local-sgd": TorchPostLocalSGD}


def system(name: str) -> System:
    """The system of this name, with options. Raises `UnknownName` or `InvalidRules` as strategies do."""
    return build(name, {**BASELINES, **{n: _strategy_maker(name, maker) for n, maker in STRATEGIES.items()}}, "system")


def _strategy_maker(name: str, maker: Callable[..., Strategy]) -> Callable[..., System]:
    def make(**options: Any) -> System:
        return Outpace(name, maker(**options))

    make.__signature__ = signature(maker)  # type: ignore[attr-defined]
    return make
