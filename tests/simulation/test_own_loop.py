"""A user's own loop in simulated time: one thread for each rank, and a baton."""

from __future__ import annotations

import os
import random
import sys
import threading

import pytest
import torch

import outpace
from outpace import DistributedOptimizer, Eager
from outpace.errors import InvalidRules, ModelMismatch, RankFailed


def train(strategy: str, steps: int = 25, finishes: bool = True) -> list[bytes]:
    """An ordinary script: seeds, a model, a loop."""
    torch.manual_seed(int(os.environ["RANK"]))
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = DistributedOptimizer(inner, strategy=strategy, model=model)
    for _ in range(steps):
        x = torch.randn(8, 3)
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
    if finishes:
        optimizer.finish()
    return [t.numpy().tobytes() for t in model.state_dict().values()]


@pytest.mark.parametrize("strategy", ["allreduce", "eager-majority", "eager-solo", "eager:quorum=2,late=count"])
def test_simulated_replicas_end_bit_identical(strategy: str) -> None:
    run = outpace.simulate(train, ranks=5, args=(strategy,), imbalance="exponential:mean_ms=100")
    assert all(result == run.results[0] for result in run.results)


def test_simulated_training_equals_real_training_bit_for_bit_at_full_quorum() -> None:
    real = outpace.spawn(train, 3, ("allreduce",))
    simulated = outpace.simulate(train, ranks=3, args=("allreduce",), imbalance="random:k=1,delay_ms=70")
    assert list(simulated.results) == real


def test_a_run_is_the_same_each_time() -> None:
    runs = [outpace.simulate(train, ranks=4, args=("eager-majority",), imbalance="gamma") for _ in range(2)]
    assert runs[0] == runs[1]


def test_time_is_what_the_scenario_says() -> None:
    run = outpace.simulate(train, 2, ("allreduce", 10), compute_ms=500, network="zero", imbalance="slow:factor=3")
    assert run.seconds == pytest.approx(15.0)
    assert run.waited_s == pytest.approx([0.0, 10.0])


def test_each_rank_has_its_environment_and_its_generators_to_itself() -> None:
    def draws() -> list[object]:
        rank = os.environ["RANK"]
        os.environ["MINE"] = rank
        random.seed(int(rank))
        optimizer = DistributedOptimizer(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1), "eager-solo")
        seen: list[object] = []
        for _ in range(5):
            optimizer.step()
            seen += [os.environ["RANK"] == rank == os.environ["MINE"], random.random()]
        optimizer.finish()
        return seen

    before, outside = random.getstate(), os.environ.get("RANK")
    run = outpace.simulate(draws, ranks=3, imbalance="exponential")
    for rank, seen in enumerate(run.results):
        own = random.Random(rank)
        assert seen == [item for _ in range(5) for item in (True, own.random())]
    assert random.getstate() == before
    assert os.environ.get("RANK") == outside
    assert "MINE" not in os.environ


def test_generators_nobody_seeded_begin_as_in_processes_of_their_own() -> None:
    run = outpace.simulate(lambda: (random.random(), torch.rand(1).item()), ranks=3)
    assert len({own for own, _ in run.results}) == 3
    assert len({alike for _, alike in run.results}) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"fn": 3}, "a function is needed"),
        ({"fn": train, "args": 3}, "a sequence of its arguments"),
        ({"fn": train, "imbalance": None}, "imbalance=None must be a name"),
        ({"fn": train, "ranks": 0}, "ranks=0 must be a whole number"),
        ({"fn": train, "ranks": 10**6}, "more than outpace simulates"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidRules, match=words):
        outpace.simulate(**arguments)  # type: ignore[arg-type]


def test_a_rank_that_exits_is_a_rank_that_failed() -> None:
    with pytest.raises(RankFailed, match="SystemExit: 3"):
        outpace.simulate(lambda: sys.exit(3), ranks=2)


def test_a_script_that_simply_ends_leaves_the_others_alone() -> None:
    def uneven() -> int:
        train("eager-majority", steps=3 + 5 * int(os.environ["RANK"]), finishes=False)
        return 1

    assert outpace.simulate(uneven, ranks=3).results == (1, 1, 1)


def test_all_begin_with_rank_0s_weights_even_when_it_comes_late_and_nothing_is_kept_for_long() -> None:
    def late() -> list[float]:
        rank = int(os.environ["RANK"])
        if rank == 0:  # two seconds of another job come first
            with DistributedOptimizer(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)) as first:
                for _ in range(20):
                    first.step()
        else:
            DistributedOptimizer(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)).finish()
        weight = torch.nn.Parameter(torch.full((2,), float(rank)))
        DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), strategy=Eager(max_staleness=1)).finish()
        return weight.tolist()

    assert outpace.simulate(late, ranks=3).results == ([0.0, 0.0],) * 3


def test_what_a_rank_raises_is_raised_with_its_rank_and_nothing_is_left_behind() -> None:
    def fails() -> None:
        if os.environ["RANK"] == "2":
            raise ValueError("no data")
        train("eager-majority")

    before = threading.active_count()
    with pytest.raises(RankFailed, match=r"simulated rank 2 raised.*\n(.*\n)*ValueError: no data"):
        outpace.simulate(fails, ranks=3)
    assert threading.active_count() == before


def test_another_model_on_one_rank_is_refused() -> None:
    def differs() -> None:
        size = 3 if os.environ["RANK"] == "1" else 2
        DistributedOptimizer(torch.optim.SGD([torch.nn.Parameter(torch.zeros(size))], lr=0.1))

    with pytest.raises(RankFailed) as raised:
        outpace.simulate(differs, ranks=2)
    assert isinstance(raised.value.__cause__, ModelMismatch)


def test_a_rank_that_never_comes_is_named() -> None:
    def absent() -> None:
        if os.environ["RANK"] == "0":
            train("allreduce")

    with pytest.raises(outpace.OutpaceError, match="simulated rank 0 waits forever"):
        outpace.simulate(absent, ranks=2)


def test_checkpoints_work_in_simulated_time() -> None:
    def resumes() -> bytes:
        def make() -> tuple[torch.nn.Parameter, DistributedOptimizer]:
            weight = torch.nn.Parameter(torch.ones(2))
            return weight, DistributedOptimizer(torch.optim.SGD([weight], lr=0.1, momentum=0.9), "eager-majority")

        weight, optimizer = make()
        for _ in range(7):
            weight.grad = weight.detach().clone()
            optimizer.step()
        optimizer.synchronize()
        state, saved = optimizer.state_dict(), weight.detach().clone()
        optimizer.finish()
        weight, again = make()
        weight.data.copy_(saved)
        again.load_state_dict(state)
        weight.grad = weight.detach().clone()
        again.step()
        again.finish()
        return weight.detach().numpy().tobytes()

    assert len(set(outpace.simulate(resumes, ranks=3, imbalance="exponential").results)) == 1
