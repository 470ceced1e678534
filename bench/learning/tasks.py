"""What is trained: a workload under an optimizer that is not its own, in one of several orders of its data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from outpace.imbalance import Imbalance
from outpace.randomness import generator, seeded
from outpace.workloads import Score, Workload, workload

LAYERS, WAVES = (64, 384, 384, 64, 1), 16
OF_A_RANK, HELD_OUT, BATCH, NOISE = 8192, 1024, 32, 0.05
SHARED_DATA = True  #: the ranks share one pool of work and of data, and whoever is free takes what comes next
DRAW = 2  #: of W and v, for all seeds: else their luck would hide what a strategy does

#: SGD's momentum and AdamW's decay are what most scripts have; the schedule of AdamW is below.
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": partial(SGD, momentum=0.9),
    "adam": Adam,
    "adamw": partial(AdamW, weight_decay=0.05),
}
SCHEDULED = ("adamw",)  #: follow a cosine
FLOOR = 0.1  #: of the learning rate, at the end of the cosine and for steps beyond it
ANOTHER_ORDER = 1000.5  #: epochs further on, the same data come in an order that has nothing to do with the first one


class Sines(Workload):
    """y = sin(x W) v + noise for normal x, and a network of 197,505 parameters that nobody tuned.

    Every rank has samples of its own, in another order in every epoch. The seed draws them, and the model's beginning.

    >>> inputs, targets = Sines(seed=1).batch(step=0, rank=3, world=4)
    >>> inputs.shape, targets.shape
    (torch.Size([32, 64]), torch.Size([32, 1]))
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        draws = torch.Generator().manual_seed(DRAW)
        self._directions = torch.randn(LAYERS[0], WAVES, generator=draws) / 8
        self._heights = torch.randn(WAVES, 1, generator=draws)
        self._held_out = self._samples(HELD_OUT, draws, noise=0.0)
        self._of_rank: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def steps_per_epoch(self) -> int:
        """256, in a world of any size."""
        return OF_A_RANK // BATCH

    def model(self) -> nn.Module:
        """Four linear layers."""
        with seeded(f"sines/{self.seed}/model"):
            layers: list[nn.Module] = []
            for inner, outer in pairwise(LAYERS):
                layers += [nn.Linear(inner, outer), nn.ReLU()]
            return nn.Sequential(*layers[:-1])

    def optimizer(self, model: nn.Module) -> Optimizer:
        """SGD with momentum."""
        return SGD(model.parameters(), lr=0.01, momentum=0.9)

    def batch(self, step: int, rank: int, world: int) -> tuple[Tensor, Tensor]:
        """Of this rank's own samples."""
        if rank not in self._of_rank:
            self._of_rank[rank] = self._samples(OF_A_RANK, generator(f"sines/{self.seed}/{rank}"), NOISE)
        epoch, place = divmod(step, self.steps_per_epoch)
        order = torch.randperm(OF_A_RANK, generator=generator(f"sines/{self.seed}/{rank}/{epoch}"))
        mine = order[place * BATCH : (place + 1) * BATCH]
        inputs, targets = self._of_rank[rank]
        return inputs[mine], targets[mine]

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean squared error."""
        return nn.functional.mse_loss(outputs, targets)

    @torch.no_grad()
    def score(self, model: nn.Module) -> Score:
        """The loss on samples without noise that no rank trains on."""
        inputs, targets = self._held_out
        loss = float(self.loss(model(inputs), targets))
        return Score(loss, loss)

    def _samples(self, count: int, draws: torch.Generator, noise: float) -> tuple[Tensor, Tensor]:
        inputs = torch.randn(count, LAYERS[0], generator=draws)
        hidden = noise * torch.randn(count, 1, generator=draws)
        return inputs, torch.sin(inputs @ self._directions) @ self._heights + hidden


class Task(Workload):
    """A workload with an optimizer and a learning rate that were chosen for it here."""

    def __init__(self, name: str, optimizer: str, learning_rate: float, seed: int, in_another_order: bool) -> None:
        self.inner = Sines(seed) if name == "sines" else workload(name, seed)
        self.metric = self.inner.metric
        self._optimizer, self._learning_rate = optimizer, learning_rate
        self._first_step = round(ANOTHER_ORDER * self.inner.steps_per_epoch) if in_another_order else 0
        self._dealt: dict[tuple[int, int], int] = {}  # (rank, its own step) -> how many were dealt before
        self._latest: dict[int, tuple[int, tuple[Tensor, Tensor]]] = {}

    @property
    def steps_per_epoch(self) -> int:
        """The workload's."""
        return self.inner.steps_per_epoch

    def model(self) -> nn.Module:
        """The workload's."""
        return self.inner.model()

    def optimizer(self, model: nn.Module) -> Optimizer:
        """The one that was chosen."""
        return OPTIMIZERS[self._optimizer](model.parameters(), lr=self._learning_rate)

    def batch(self, step: int, rank: int, world: int) -> tuple[Tensor, Tensor]:
        """The workload's. With shared data, whoever asks first has the next of an order that is one for all ranks: a
        slow rank's data are not seen less often. A rank's latest is kept: each of its micro-batches asks for it again.
        """
        kept = self._latest.get(rank)
        if kept is None or kept[0] != step:
            number = self._dealt.setdefault((rank, step), len(self._dealt)) if SHARED_DATA else step * world + rank
            of_step, of_rank = divmod(number, world)
            kept = self._latest[rank] = step, self.inner.batch(self._first_step + of_step, of_rank, world)
        return kept[1]

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The workload's."""
        return self.inner.loss(outputs, targets)

    def score(self, model: nn.Module) -> Score:
        """The workload's."""
        return self.inner.score(model)

    def cost(self, inputs: Tensor, outputs: Tensor) -> float:
        """The workload's."""
        return self.inner.cost(inputs, outputs)


def schedule(optimizer: str, steps: int) -> Callable[[Optimizer], LRScheduler] | None:
    """How the learning rate goes down over a rank's own steps, if it does."""
    return partial(_cosine, steps=steps) if optimizer in SCHEDULED else None


def _cosine(optimizer: Optimizer, steps: int) -> LRScheduler:
    def factor(step: int) -> float:
        return FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * min(1.0, step / steps))) / 2

    return LambdaLR(optimizer, factor)


# -- imbalances that only the measure has ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stopped:
    """The last rank stands still once, for as long as the others need for `rounds` rounds."""

    at_step: int
    rounds: int = 50

    def compute_s(self, rank: int, world: int, step: int, base_s: float) -> float:
        """Longer at that one step."""
        return base_s * (1 + self.rounds) if (rank, step) == (world - 1, self.at_step) else base_s


@dataclass(frozen=True)
class OwnCosts:
    """A step takes as long as its own samples are: who is late has long ones."""

    task: Workload

    def compute_s(self, rank: int, world: int, step: int, base_s: float) -> float:
        """What the workload says of inputs alone; what they lead to is not known before the step."""
        inputs, _ = self.task.batch(step, rank, world)
        return base_s * self.task.cost(inputs, inputs)


IMBALANCES: dict[str, str] = {
    "none": "none",
    "jitter": "lognormal:mean_ms=5,sd_ms=5",
    "random": "random:k=1,delay_ms=300",
    "random-200": "random:k=1,delay_ms=200",
    "slow": "slow:k=1,factor=4",
    "lengths": "lengths:mean_ms=100",
    "rollouts": "rollouts:scale=0.0437",
    "pareto": "pareto:min_ms=30,alpha=1.5",
    "stopped": "the last rank stands still once, for 50 rounds",
    "own": "each step takes as long as its own samples are",
}
BALANCED = ("none", "jitter")  #: where nobody is late to speak of


def imbalance_of(name: str, task: Workload, steps: int) -> str | Imbalance:
    """What a scenario takes."""
    made: dict[str, Callable[[], Imbalance]] = {
        "stopped": lambda: Stopped(at_step=steps // 4),
        "own": lambda: OwnCosts(task),
    }
    return made[name]() if name in made else IMBALANCES[name]


def names_of(used: Iterable[str]) -> list[tuple[str, str]]:
    """The imbalances among these, each with what it is, in the order of the table."""
    used = set(used)
    return [(name, about) for name, about in IMBALANCES.items() if name in used]
