"""Training in simulated time: the weights of real training, and the log of timing alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from outpace.errors import OutpaceError
from outpace.protocol.events import Claim, Event, Finish, Snapshot
from outpace.simulation import DATA, Scenario, simulate_timing, simulate_training
from outpace.workloads import Hyperplane, Score, Workload

STRATEGIES = ["allreduce", "eager-majority", "eager-solo", "eager:quorum=2,late=drop", "auto"]
UNEVEN = Scenario(ranks=5, steps=24, imbalance="exponential:mean_ms=150")


class Task(Workload):
    """A small regression that keeps the models it was asked for."""

    def __init__(self, dropout: float = 0.0) -> None:
        self.models: list[nn.Module] = []
        self._dropout = dropout
        self._truth = torch.randn(6, 1, generator=torch.Generator().manual_seed(1))

    steps_per_epoch = 1

    def model(self) -> nn.Module:
        self.models.append(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(self._dropout), nn.Linear(8, 1)))
        return self.models[-1]

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)

    def batch(self, step: int, rank: int, world: int) -> tuple[Tensor, Tensor]:
        inputs = torch.randn(16, 6, generator=torch.Generator().manual_seed(1000 * step + rank))
        return inputs, inputs @ self._truth

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.mse_loss(outputs, targets)

    @torch.no_grad()
    def score(self, model: nn.Module) -> Score:
        inputs, targets = self.batch(999, 999, 1)
        loss = float(self.loss(model.eval()(inputs), targets))
        return Score(loss, loss)


@pytest.mark.parametrize("ranks", [2, 3])
def test_at_full_quorum_the_steps_are_those_of_a_plain_optimizer(ranks: int) -> None:
    task, steps = Task(), 12
    run = simulate_training("allreduce", Scenario(ranks=ranks, steps=steps, imbalance="exponential"), task)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        plain = task.model()
    optimizer, losses = task.optimizer(plain), []
    for step in range(steps):
        optimizer.zero_grad()
        batches = [task.batch(step, rank, ranks) for rank in range(ranks)]
        mine = [task.loss(plain(inputs), targets) for inputs, targets in batches]
        torch.stack(mine).mean().backward()
        optimizer.step()
        losses += [loss.item() for loss in mine]
    for simulated, expected in zip(task.models[0].parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(simulated, expected, rtol=1e-5, atol=1e-6)
    by_step = sorted(run.losses, key=lambda point: (round(point.seconds, 9), point.rank))
    assert [point.loss for point in by_step] == pytest.approx(losses, rel=1e-5)


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_all_ranks_end_with_the_same_bits(strategy: str, data: str) -> None:
    task = Task()
    scenario = Scenario(ranks=5, steps=24, imbalance="exponential:mean_ms=150", apply_ms=3, data=data)
    simulate_training(strategy, scenario, task)
    first = task.models[0].state_dict()
    for model in task.models[1:]:
        assert all(torch.equal(first[name], tensor) for name, tensor in model.state_dict().items())


def test_the_same_arguments_give_the_same_weights_and_another_seed_gives_others() -> None:
    def weights(seed: int) -> str:
        return simulate_training("eager-majority", Scenario(4, 10, imbalance="gamma", seed=seed), Task(0.1)).weights

    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first = weights(seed=0)
    assert torch.rand(1) == expected, "the caller's random numbers are left alone"
    assert weights(seed=0) == first != weights(seed=1)


@pytest.mark.parametrize("strategy", ["allreduce", "eager-majority", "eager-solo"])
def test_the_loss_falls_in_the_course_of_time(strategy: str) -> None:
    task, made = Task(), []
    run = simulate_training(strategy, UNEVEN, task, progress=made.append)
    steps = UNEVEN.ranks * UNEVEN.steps
    assert made == list(range(1, steps + 1))
    assert len(run.losses) == steps
    assert [point.seconds for point in run.losses] == sorted(point.seconds for point in run.losses)
    beginning, end = run.losses[: steps // 4], run.losses[-steps // 4 :]
    assert sum(point.loss for point in end) < 0.5 * sum(point.loss for point in beginning)
    assert run.held_out.loss == task.score(task.models[0]).loss < 0.5 * beginning[0].loss


OF_ROWS = ("row", "slot", "samples", "planned", "clip")


def log_of(seen: list[Event]) -> list[tuple[object, ...]]:
    """What happened when, without snapshots. Which row a rank writes into is its own affair, and what into it."""
    kept = [event for event in seen if not isinstance(event, (Claim, Snapshot))]
    return sorted((event.time_ns, type(event).__name__, *_what(event)) for event in kept)


def _what(event: Event) -> Iterator[float]:
    return (value for name, value in event._asdict().items() if name not in OF_ROWS)


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("network", ["zero", "host", "ethernet"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_training_has_the_log_and_the_figures_of_timing_alone(strategy: str, network: str, data: str) -> None:
    scenario = Scenario(ranks=5, steps=24, imbalance="lognormal:mean_ms=80", network=network, data=data)
    timed: list[Event] = []
    trained: list[Event] = []
    timing = simulate_timing(strategy, scenario, watch=lambda event, _: timed.append(event))
    training = simulate_training(strategy, scenario, Task(), watch=lambda event, _: trained.append(event))
    assert log_of(timed) == log_of(trained)
    for figure in ("seconds", "steps", "rounds", "waited_s", "staleness", "late_share", "throughput"):
        assert getattr(timing, figure) == getattr(training, figure), figure


def test_ranks_that_end_with_different_weights_are_reported() -> None:
    task = Task()

    def spoil(event: Event, _: object) -> None:
        if isinstance(event, Finish) and event.rank == 1:
            with torch.no_grad():
                next(task.models[1].parameters()).add_(1)

    with pytest.raises(OutpaceError, match="rank 1 and rank 0 ended with different weights"):
        simulate_training("allreduce", Scenario(ranks=3, steps=4), task, watch=spoil)


def test_the_hyperplane_is_learned() -> None:
    task = Hyperplane(seed=2)
    run = simulate_training("eager-majority", Scenario(ranks=2, steps=5, imbalance="slow"), task)
    assert task.noise_floor() < run.held_out.loss < 0.6 * task.score(task.model()).loss


@pytest.mark.parametrize("strategy", ["allreduce", "eager-solo", "nonblocking", "wagma"])
def test_evaluating_on_the_way_shows_the_way_and_changes_nothing(strategy: str) -> None:
    plain = simulate_training(strategy, UNEVEN, Task())
    seen = simulate_training(strategy, UNEVEN, Task(), evaluations=6)
    assert (seen.weights, seen.digest, seen.seconds) == (plain.weights, plain.digest, plain.seconds)
    assert plain.curve == ()
    shares = [point.share for point in seen.curve]
    assert shares == pytest.approx([part / 6 for part in range(7)], abs=UNEVEN.ranks / (UNEVEN.ranks * UNEVEN.steps))
    assert [point.seconds for point in seen.curve] == sorted(point.seconds for point in seen.curve)
    assert seen.curve[-1].score == seen.held_out
    assert seen.curve[-1].seconds >= seen.seconds
    assert seen.curve[3].score.loss < 0.5 * seen.curve[0].score.loss


def test_a_schedule_goes_by_each_ranks_own_steps_as_in_a_script() -> None:
    """At full quorum all ranks are at the same step: the weights are those of a plain loop with that schedule."""
    task, steps, ranks = Task(), 12, 3

    def halving(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 ** (step // 4))

    simulate_training("allreduce", Scenario(ranks, steps, imbalance="exponential"), task, schedule=halving)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        plain = task.model()
    optimizer = task.optimizer(plain)
    scheduler = halving(optimizer)
    for step in range(steps):
        optimizer.zero_grad()
        batches = [task.batch(step, rank, ranks) for rank in range(ranks)]
        torch.stack([task.loss(plain(inputs), targets) for inputs, targets in batches]).mean().backward()
        optimizer.step()
        scheduler.step()
    for simulated, expected in zip(task.models[0].parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(simulated, expected, rtol=1e-5, atol=1e-6)
