"""Quorums and asynchronous SGD: what a round applies is what its record says, at bounded staleness."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

import outpace
from outpace.protocol.round import Round
from outpace.simulation import Scenario, simulate_timing
from tests.support.by_hand import (
    Maker,
    Table,
    Walk,
    assert_near,
    noise,
    plain,
    quadratics,
    rounds_of,
    sgd,
    versions,
    walk,
)

WORLD = 5
MINIMA = noise(WORLD, 3, seed=11)
CURVATURES = torch.linspace(0.5, 2.0, WORLD, dtype=torch.float64)
START = [1.0, -2.0, 0.5]
UNEVEN = Table(100, 112, 96, 268, 131)
RANDOM = "exponential:mean_ms=120"
Divisor = Callable[[Round], float]


def trained(choice: str, imbalance: object = RANDOM, steps: int = 14, make: Maker | None = None) -> list[Walk]:
    return walk(
        choice, WORLD, steps, quadratics(MINIMA, CURVATURES), start=START, make=make or sgd(0.1), imbalance=imbalance
    )


def slope(rank: int, x: Tensor) -> Tensor:
    return CURVATURES[rank] * (x - MINIMA[rank])


def replayed(records: Sequence[Round], divisor: Divisor, make: Maker) -> list[Tensor]:
    """One model that applies each round's gradients, at the versions they were computed at."""
    history: list[Tensor] = []

    def gradient(number: int, weights: Tensor) -> Tensor:
        history.append(weights)
        record = records[number]
        given = [
            weight * c.pieces * slope(c.rank, history[c.version])
            for weight, c in zip(weights_of(record), record.contributions, strict=True)
        ]
        return torch.stack(given).sum(0) / divisor(record)

    return plain(make, START, gradient, len(records), [record.stride for record in records])


def weights_of(record: Round) -> Sequence[float]:
    return record.weights or [1.0] * len(record.contributions)


def world(record: Round) -> float:
    return WORLD


def contributors(record: Round) -> float:
    return sum(weights_of(record))


def finished(record: Round) -> float:
    return sum(weight * c.pieces for weight, c in zip(weights_of(record), record.contributions, strict=True))


def one(record: Round) -> float:
    return 1.0


FORMULAS: dict[str, Divisor] = {
    "allreduce": world,
    "eager-solo": world,
    "eager-majority": world,
    "eager-solo:repair=discount": world,
    "eager-majority:repair=discount": world,
    "eager:quorum=2,late=count,grace=0": world,
    "eager-solo:late=drop,grace=0": world,
    "eager-majority:normalise=contributors,repair=discount": contributors,
    "m-sync:m=3": contributors,
    "m-sync:m=1": contributors,
    "rennala:batch=7": finished,
    "rennala": finished,
    "ringmaster": world,
    "ringmaster:repair=discount": world,
    "ringmaster:delay=2": world,
    "ringmaster:normalise=sum": one,
    "nonblocking": world,
    "nonblocking:repair=discount": world,
    "nonblocking:normalise=finished,repair=discount": finished,
    "dropcompute": world,
}


@pytest.mark.parametrize("imbalance", [UNEVEN, RANDOM], ids=["uneven", "random"])
@pytest.mark.parametrize("make", [sgd(0.1), sgd(0.05, momentum=0.5)], ids=["sgd", "momentum"])
@pytest.mark.parametrize("choice", FORMULAS)
def test_a_round_applies_exactly_what_its_record_says(choice: str, make: Maker, imbalance: object) -> None:
    walks = trained(choice, imbalance, make=make)
    records, weights = rounds_of(walks), versions(walks)
    assert [record.number for record in records] == list(range(len(records)))
    for number, expected in enumerate(replayed(records, FORMULAS[choice], make)):
        assert_near(weights[number], expected)
    assert all(torch.equal(mine.end, weights[len(records) - 1]) for mine in walks)


# -- staleness ---------------------------------------------------------------------------------------------------------

BOUNDS = {
    "allreduce": 0,
    "dropcompute:tau_ms=150": 0,
    "m-sync:m=3": 0,
    "m-sync:m=1": 0,
    "rennala": 0,
    "rennala:batch=5": 0,
    "ringmaster:delay=1": 0,
    "ringmaster:delay=2": 1,
    "ringmaster:delay=4": 3,
    "ringmaster": 11,
    "eager-solo:max_staleness=1": 1,
    "eager-solo:max_staleness=3,late=count": 3,
    "eager-majority:late=drop": 0,
    "nonblocking:work=1": 0,
    "nonblocking:max_staleness=2": 2,
}


@pytest.mark.parametrize("choice", BOUNDS)
@pytest.mark.parametrize("network", ["zero", "ethernet"])
def test_nothing_is_applied_that_is_staler_than_promised(choice: str, network: str) -> None:
    run = simulate_timing(choice, Scenario(ranks=6, steps=60, imbalance="exponential:mean_ms=300", network=network))
    assert max(run.staleness) <= BOUNDS[choice]
    if BOUNDS[choice]:
        assert max(run.staleness) > 0, "something came late"


# -- m-synchronous SGD -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("m", [1, 2, 3, 5])
def test_exactly_m_gradients_make_an_update(m: int) -> None:
    records = rounds_of(trained(f"m-sync:m={m}"))
    sizes = [len(record.contributions) for record in records]
    whole = sizes[: sizes.index(next((n for n in sizes if n < m), None)) if min(sizes) < m else len(sizes)]
    assert set(whole) == {m}
    assert len(whole) > 3, "until too few are left"
    for record in records:
        assert len({c.rank for c in record.contributions}) == len(record.contributions)
        assert all(c.version == record.number for c in record.contributions)


def test_the_same_fastest_ranks_are_used_for_ever() -> None:
    """A coverage test: who is always slow never contributes while the others have data."""
    records = rounds_of(trained("m-sync:m=3", UNEVEN))
    assert {tuple(c.rank for c in record.contributions) for record in records[:14]} == {(0, 1, 2)}


# -- Rennala -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 4, 5, 12])
def test_exactly_so_many_gradients_make_an_update_wherever_they_are_from(batch: int) -> None:
    records = rounds_of(trained(f"rennala:batch={batch}", steps=20))
    assert [finished(record) for record in records[:-1]] == [batch] * (len(records) - 1)
    assert finished(records[-1]) <= batch, "what is left at the end"
    assert len(records) > 2
    shares = {tuple((c.rank, c.pieces) for c in record.contributions) for record in records}
    assert len(shares) > 1


def test_equal_ranks_and_a_batch_of_their_number_begin_as_minibatch_sgd() -> None:
    walks, together = trained(f"rennala:batch={WORLD}", "none"), trained("allreduce", "none")
    assert_near(versions(walks)[0], versions(together)[0], 1e-15)


@pytest.mark.parametrize("choice", ["rennala:batch=1", "m-sync:m=1", "ringmaster:delay=1,normalise=sum"])
def test_one_fresh_gradient_an_update_is_sgd_on_the_fastest_rank(choice: str) -> None:
    walks = trained(choice, Table(100, 112, 40, 268, 131), steps=10)
    fastest = plain(sgd(0.1), START, lambda _, x: slope(2, x), 10)
    records, weights = rounds_of(walks), versions(walks)
    for number in range(10):
        assert [c.rank for c in records[number].contributions] == [2]
        assert_near(weights[number], fastest[number], 1e-14)


# -- Ringmaster --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delay", [1, 2, 3, 100])
def test_updates_are_accepted_gradients(delay: int) -> None:
    tallies: dict[int, object] = {}
    walks = walk(
        f"ringmaster:delay={delay}",
        WORLD,
        14,
        quadratics(MINIMA, CURVATURES),
        start=START,
        imbalance=RANDOM,
        look=lambda engine: tallies.update(engine.ledger.members.tallies),
    )
    records = rounds_of(walks)
    assert {len(record.contributions) for record in records} == {1}
    assert all(record.staleness(record.contributions[0]) < delay for record in records)
    dropped = sum(tally.dropped for tally in tallies.values())  # type: ignore[attr-defined]
    assert len(records) + dropped == WORLD * 14
    assert (dropped == 0) == (delay == 100)


def distance(strategy: str, make: Maker, ranks: int) -> float:
    """How far equal steps of all ranks move a weight, uphill by a gradient of 1 and weight decay, if there is any."""

    def train() -> float:
        weight = torch.nn.Parameter(torch.full((1,), 100.0))
        optimizer = outpace.DistributedOptimizer(make([weight]), strategy)
        for _ in range(40):
            weight.grad = torch.ones(1)
            optimizer.step()
        optimizer.finish()
        return 100 - weight.item()

    far: float = outpace.simulate(train, ranks=ranks, network="zero").results[0]
    return far


@pytest.mark.parametrize(
    "make",
    [
        lambda weights: torch.optim.SGD(weights, lr=0.01),
        lambda weights: torch.optim.SGD(weights, lr=0.01, weight_decay=0.1),
        lambda weights: torch.optim.Adam(weights, lr=0.01),
        lambda weights: torch.optim.AdamW(weights, lr=0.01),
        lambda weights: torch.optim.RMSprop(weights, lr=0.01),
    ],
    ids=["SGD", "SGD with weight decay", "Adam", "AdamW", "RMSprop"],
)
def test_in_as_many_updates_as_gradients_ringmaster_moves_about_as_far_as_allreduce(make: Maker) -> None:
    ratio = distance("ringmaster", make, WORLD) / distance("allreduce", make, WORLD)
    assert 0.9 < ratio < 1.1 * math.sqrt(WORLD), "sqrt(P) for Adam where nothing is noise, 1 where all is"


# -- eager-SGD ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("quorum", "least"), [("majority", 3), ("2", 2), ("0.8", 4), ("full", 5), ("solo", 1)])
def test_a_round_has_its_quorum_on_time_while_all_are_there(quorum: str, least: int) -> None:
    records = rounds_of(trained(f"eager:quorum={quorum},grace=0,max_staleness=64"))
    on_time = [sum(not c.late for c in record.contributions) for record in records]
    assert min(on_time[: 14 - WORLD]) >= least
    assert all(record.world == WORLD for record in records)


def test_with_everybody_on_time_eager_is_allreduce() -> None:
    eager, together = trained("eager-solo:grace=10"), trained("allreduce")
    assert [len(record.contributions) for record in rounds_of(eager)] == [WORLD] * 14
    for mine, theirs in zip(eager, together, strict=True):
        assert all(map(torch.equal, mine.weights, theirs.weights))
