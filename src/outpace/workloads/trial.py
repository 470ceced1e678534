"""A trial: one workload, trained by one system on real ranks. Owns the loop that all systems share, and its clock.

Computing is emulated. Ranks of a demonstration share a few cores, so their real gradients would hold up each other and
nothing else would be seen. A step therefore makes its real data and real forward pass, sleeps until as much time has
passed as the imbalance makes of `compute_ms` for this rank, and then runs its real backward pass.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

from torch import nn

from outpace.environment import Place, whereami
from outpace.errors import RankFailed
from outpace.imbalance import imbalance
from outpace.launch import spawn
from outpace.workloads.base import Workload
from outpace.workloads.hyperplane import Hyperplane
from outpace.workloads.systems import system


@dataclass(frozen=True)
class Settings:
    """What all systems of a comparison have in common."""

    ranks: int = 8
    steps: int = 64
    compute_ms: float = 100.0
    imbalance: str = "random:k=1,delay_ms=200"
    seed: int = 0


@dataclass(frozen=True)
class RankOutcome:
    """What one rank measured."""

    rank: int
    began_s: float  #: on the clock that all processes of a machine share
    ended_s: float
    waited_s: float  #: from its own gradients being ready until its step was done, over all steps, and in finish
    final_loss: float
    late_share: float
    dropped: int


@dataclass(frozen=True)
class Outcome:
    """What a trial showed."""

    system: str
    ranks: tuple[RankOutcome, ...]

    @property
    def seconds(self) -> float:
        """Training alone: from the first rank's first step to the last rank's end."""
        return max(r.ended_s for r in self.ranks) - min(r.began_s for r in self.ranks)

    @property
    def waited_s(self) -> float:
        """Mean over the ranks."""
        return sum(r.waited_s for r in self.ranks) / len(self.ranks)

    @property
    def final_loss(self) -> float:
        """On held-out points, with rank 0's weights."""
        return self.ranks[0].final_loss

    @property
    def late_share(self) -> float:
        """Share of the applied contributions that were late."""
        return self.ranks[0].late_share

    @property
    def dropped(self) -> int:
        """Contributions that no round took in."""
        return self.ranks[0].dropped


def run_trial(name: str, settings: Settings, progress: Connection | None = None) -> Outcome:
    """Trains in `settings.ranks` processes and returns what they measured. Blocks; no process survives the call.

    After each step of rank 0, (steps done, loss) is sent through `progress`.
    """
    outcomes = spawn(_train, settings.ranks, (name, settings, progress))
    if None in outcomes:
        raise RankFailed(f"rank {outcomes.index(None)} was killed while training with {name}", outcomes.index(None))
    return Outcome(name, tuple(outcomes))


def _train(name: str, settings: Settings, progress: Connection | None) -> RankOutcome:
    """The life of one rank."""
    place, task, chosen = whereami(), Hyperplane(settings.seed), system(name)
    report = progress.send if progress is not None and place.rank == 0 else _ignore
    plain = task.model()
    _warm_up(task, plain, place)
    model, optimizer = chosen.wrap(plain, task.optimizer(plain))
    stopwatch = _Stopwatch(plain)
    began = time.monotonic()
    for step, due_s in enumerate(_lengths_s(settings, place)):
        until = time.monotonic() + due_s
        inputs, targets = task.batch(step, place.rank, place.world)
        optimizer.zero_grad()
        loss = task.loss(model(inputs), targets)
        time.sleep(max(0.0, until - time.monotonic()))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        stopwatch.stop()
        report((step + 1, loss.item()))
    stopwatch.start()
    chosen.finish()
    stopwatch.stop()
    ended = time.monotonic()
    final_loss = task.score(plain).loss
    late_share, dropped = chosen.lateness()
    chosen.close()
    return RankOutcome(place.rank, began, ended, stopwatch.total_s, final_loss, late_share, dropped)


class _Stopwatch:
    """Times what comes after a rank's own gradients: the same for all systems, wherever they do their waiting.

    DDP waits inside `backward`, outpace inside `step`. Hooks on the parameters see the gradients before either.
    """

    def __init__(self, model: nn.Module) -> None:
        self.total_s = 0.0
        self.start()
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(lambda _: self.start())  # type: ignore[no-untyped-call]

    def start(self) -> None:
        self._started = time.monotonic()

    def stop(self) -> None:
        self.total_s += time.monotonic() - self._started


def _lengths_s(settings: Settings, place: Place) -> list[float]:
    """How long this rank computes at each step."""
    model = imbalance(settings.imbalance, settings.seed)
    base_s = settings.compute_ms / 1000
    return [model.compute_s(place.rank, place.world, step, base_s) for step in range(settings.steps)]


def _warm_up(task: Workload, model: nn.Module, place: Place) -> None:
    """One gradient that is thrown away, so that no system pays for the first use of memory and kernels."""
    inputs, targets = task.batch(0, place.rank, place.world)
    task.loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
    model.zero_grad()


def _ignore(_: object) -> None:
    """For ranks that nobody watches."""
