"""Rounds of micro-batches without delay, and their normalisation: gradient accumulation, and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from outpace.simulation import Scenario, simulate_training
from outpace.workloads import Score, Workload
from tests.support.by_hand import Table, Walk, assert_near, noise, plain, rounds_of, sgd, versions, walk_in_rounds

PARTS = 8
ROUNDS = 5
WIDTH = 48
MINIMA = noise(4, ROUNDS * PARTS, WIDTH, seed=1)  # of each rank and piece of data
FULL = [
    "allreduce",
    "nonblocking:work=1",
    "nonblocking:work=1,normalise=planned,rest=drop",
    "dropcompute:tau_ms=1000000",
    "dropcompute:tau_ms=1000000,normalise=finished,rest=carry",
    "dropcompute",
    "m-sync:m={world}",
    "m-sync:m=1.0",
]
UNEVEN = Table(80, 112, 96, 168)  # a micro-batch takes 10, 14, 12 and 21 ms


def pull(rank: int, piece: int, weights: Tensor) -> Tensor:
    """A different quadratic in each micro-batch."""
    return weights - MINIMA[rank, piece]


def accumulated(world: int) -> list[Tensor]:
    """Plain gradient accumulation: one model, all micro-batches of a round at the same weights."""

    def gradient(step: int, weights: Tensor) -> Tensor:
        total = torch.zeros_like(weights)
        for rank in range(world):
            mine = torch.zeros_like(weights)
            for piece in range(step * PARTS, (step + 1) * PARTS):
                mine = mine + pull(rank, piece, weights)
            total = total + mine
        return total / (world * PARTS)

    return plain(sgd(0.25, momentum=0.5), [0.5] * WIDTH, gradient, ROUNDS)


def in_rounds(strategy: str, world: int, **options: object) -> list[Walk]:
    data = [range(ROUNDS * PARTS)] * world
    made = {"start": [0.5] * WIDTH, "make": sgd(0.25, momentum=0.5), **options}
    return walk_in_rounds(strategy.format(world=world), data, PARTS, pull, **made)


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("strategy", FULL)
def test_with_everybody_a_round_is_gradient_accumulation_bit_for_bit(strategy: str, world: int) -> None:
    expected = accumulated(world)
    for mine in in_rounds(strategy, world):
        assert len(mine.weights) == len(expected)
        assert all(map(torch.equal, mine.weights, expected))


@pytest.mark.parametrize("strategy", ["nonblocking:repair=none", "rennala", f"rennala:batch={PARTS}"])
def test_alone_the_first_finisher_and_a_quorum_of_work_are_gradient_accumulation_too(strategy: str) -> None:
    (mine,) = in_rounds(strategy, 1)
    assert all(map(torch.equal, mine.weights, accumulated(1)))


@pytest.mark.parametrize("batch", ["", ":batch={work}"])
@pytest.mark.parametrize("world", [2, 4])
def test_the_first_quorum_of_all_work_is_gradient_accumulation_bit_for_bit(batch: str, world: int) -> None:
    """Of later rounds that cannot be said: whoever is done computes more, and who has how much then is chance."""
    walks = in_rounds(f"rennala{batch.format(work=world * PARTS)}", world)
    assert torch.equal(versions(walks)[0], accumulated(world)[0])


@pytest.mark.parametrize("strategy", ["nonblocking:work=1", "m-sync:m={world}"])
def test_micro_batches_of_one_are_allreduce(strategy: str) -> None:
    data = [range(6)] * 4
    first = walk_in_rounds("allreduce", data, 1, pull, start=[0.5] * WIDTH, imbalance=UNEVEN)
    other = walk_in_rounds(strategy.format(world=4), data, 1, pull, start=[0.5] * WIDTH, imbalance=UNEVEN)
    for mine, theirs in zip(first, other, strict=True):
        assert all(map(torch.equal, mine.weights, theirs.weights))


class Regression(Workload):
    """A linear model in float64, and the bits of its weights."""

    def __init__(self) -> None:
        self.models: list[nn.Module] = []

    steps_per_epoch = 1

    def model(self) -> nn.Module:
        self.models.append(nn.Linear(5, 3, dtype=torch.float64))
        return self.models[-1]

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.125, momentum=0.5)

    def batch(self, step: int, rank: int, world: int) -> tuple[Tensor, Tensor]:
        inputs = noise(2 * PARTS, 5, seed=100 * step + rank)
        return inputs, inputs[:, :3] - inputs[:, 2:]

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.mse_loss(outputs, targets)

    def score(self, model: nn.Module) -> Score:
        return Score(0.0, 0.0)


@pytest.mark.parametrize("world", [1, 4])
@pytest.mark.parametrize("strategy", FULL[1:])
def test_simulated_training_with_everybody_is_gradient_accumulation_bit_for_bit(strategy: str, world: int) -> None:
    task = Regression()
    scenario = Scenario(ranks=world, steps=4, network="zero", microbatches=PARTS)
    simulate_training(strategy.format(world=world), scenario, task)
    with torch.random.fork_rng():
        torch.manual_seed(scenario.seed)
        model = task.model()
    optimizer = task.optimizer(model)
    for step in range(scenario.steps):
        total = [torch.zeros_like(p) for p in model.parameters()]
        for rank in range(world):
            optimizer.zero_grad()
            for inputs, targets in zip(*(t.chunk(PARTS) for t in task.batch(step, rank, world)), strict=True):
                task.loss(model(inputs), targets).backward()
            torch._foreach_add_(total, [p.grad for p in model.parameters()])
        for parameter, gradient in zip(model.parameters(), total, strict=True):
            parameter.grad = gradient / (world * PARTS)
        optimizer.step()
    for trained, expected in zip(task.models[0].parameters(), model.parameters(), strict=True):
        assert torch.equal(trained, expected)


@pytest.mark.parametrize(
    "strategy", ["nonblocking:repair=none", "dropcompute:tau_ms=60", "dropcompute:tau_ms=60,rest=carry"]
)
def test_planned_is_finished_times_the_share_that_was_finished(strategy: str) -> None:
    def steps_of(normalise: str) -> tuple[Tensor, list[float]]:
        walks = walk_in_rounds(
            f"{strategy}{',' if ':' in strategy else ':'}normalise={normalise}",
            [range(ROUNDS * PARTS)] * 4,
            PARTS,
            lambda rank, piece, _: MINIMA[rank, piece].clone(),
            start=[0.0] * WIDTH,
            make=sgd(1.0),
            imbalance=UNEVEN,
        )
        weights = [torch.zeros(WIDTH, dtype=torch.float64), *versions(walks).values()]
        finished = [sum(c.samples for c in record.contributions) for record in rounds_of(walks)]
        return torch.stack(weights).diff(dim=0), finished

    (by_finished, finished), (by_planned, same) = steps_of("finished"), steps_of("planned")
    assert finished == same
    assert any(count < 4 * PARTS for count in finished[1:]), "the rounds must not all be complete"
    share = torch.tensor(finished, dtype=torch.float64) / (4 * PARTS)
    assert_near(by_planned, by_finished * share[:, None], 1e-14)
