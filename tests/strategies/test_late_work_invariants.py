"""Rounds with delays: every micro-batch is used once or accounted for, at the weights it was computed at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from outpace.protocol.round import Round
from outpace.strategies.dropcompute import CANDIDATES, score
from tests.support.by_hand import (
    Table,
    Walk,
    assert_near,
    basis,
    noise,
    plain,
    rounds_of,
    sgd,
    versions,
    walk,
    walk_in_rounds,
)

PARTS = 8
WORLD = 4
PIECES = 48  # of data, for each rank
UNEVEN = Table(80, 112, 96, 168)  # a micro-batch takes 10, 14, 12 and 21 ms
VERY_SLOW = Table(80, 80, 96, 1300)  # the last rank needs longer for a micro-batch than the others for a round
MINIMA = noise(WORLD, PIECES, 6, seed=2)


def pull(rank: int, piece: int, weights: Tensor) -> Tensor:
    return weights - MINIMA[rank, piece]


def used(strategy: str, imbalance: Table, divisor: float, parts: int = PARTS) -> tuple[Tensor, list[Walk]]:
    """How often each rank's each piece of data was applied."""
    walks = walk_in_rounds(
        strategy,
        [range(PIECES)] * WORLD,
        parts,
        basis(PIECES),
        start=[0.0] * (WORLD * PIECES),
        make=sgd(1.0),
        imbalance=imbalance,
    )
    assert all(torch.equal(mine.end, walks[0].end) for mine in walks)
    return (-walks[0].end * divisor).view(WORLD, PIECES), walks


# -- nothing is used twice, and nothing is lost ------------------------------------------------------------------------


@pytest.mark.parametrize("imbalance", [UNEVEN, VERY_SLOW], ids=["uneven", "very slow"])
@pytest.mark.parametrize("work", ["0", "0.5", "1"])
@pytest.mark.parametrize("busy", ["carry", "again"])
def test_nonblocking_uses_every_micro_batch_exactly_once(busy: str, work: str, imbalance: Table) -> None:
    counts, walks = used(
        f"nonblocking:busy={busy},work={work},max_staleness=64,repair=none", imbalance, divisor=WORLD * PARTS
    )
    assert torch.equal(counts, torch.ones_like(counts))
    for mine in walks:
        computed = mine.pieces if busy == "carry" else set(mine.pieces)
        assert sorted(computed) == list(range(PIECES)), "and unless it is asked to, computes none twice"


def test_nonblocking_that_drops_uses_nothing_twice_and_drops_only_what_was_not_begun() -> None:
    counts, walks = used("nonblocking:rest=drop,repair=none", UNEVEN, divisor=WORLD * PARTS)
    assert set(counts.unique().tolist()) == {0.0, 1.0}
    applied = sum(c.samples for record in rounds_of(walks) for c in record.contributions)
    assert counts.sum() == applied < WORLD * PIECES
    for rank, mine in enumerate(walks):
        given = mine.pieces
        assert given == sorted(set(given)), "handed out in order, each once"
        assert set(counts[rank].nonzero().flatten().tolist()) <= set(given), "only what was handed out was applied"


@pytest.mark.parametrize("rest", ["carry", "drop"])
def test_dropcompute_uses_what_it_handed_out_and_nothing_else(rest: str) -> None:
    counts, walks = used(f"dropcompute:tau_ms=61,rest={rest}", UNEVEN, divisor=WORLD * PARTS)
    for rank, mine in enumerate(walks):
        given = Counter(mine.pieces)
        assert set(given.values()) == {1}
        assert counts[rank].tolist() == [float(given[piece]) for piece in range(PIECES)]
        if rest == "carry":
            assert len(given) == PIECES
        else:
            ended = [len(pieces) for pieces in mine.taken if len(pieces) < PARTS]
            assert len(given) + sum(PARTS - n for n in ended) == PIECES


def test_m_sync_uses_a_whole_batch_or_nothing_of_it() -> None:
    counts, walks = used("m-sync:m=2", UNEVEN, divisor=2 * PARTS)
    full = [record for record in rounds_of(walks) if len(record.contributions) == 2]
    assert len(full) > 3, "until only one rank is left"
    assert set(counts.unique().tolist()) <= {0.0, 1.0, 2.0}, "2: a round of the last rank alone"
    assert {c.samples for record in full for c in record.contributions} == {float(PARTS)}


def test_rennala_applies_or_drops_every_gradient() -> None:
    tallies: dict[int, int] = {}
    batch = 20

    walks = walk_in_rounds(
        f"rennala:batch={batch}",
        [range(PIECES)] * WORLD,
        PARTS,
        basis(PIECES),
        start=[0.0] * (WORLD * PIECES),
        make=sgd(1.0),
        imbalance=UNEVEN,
        look=lambda engine: tallies.update(
            {rank: tally.dropped for rank, tally in engine.ledger.members.tallies.items()}
        ),
    )
    counts = torch.zeros(WORLD * PIECES, dtype=torch.float64)
    before = torch.zeros_like(counts)
    for number, weights in sorted(versions(walks).items()):
        size = sum(c.samples for c in rounds_of(walks)[number].contributions)
        counts += (before - weights) * size
        before = weights
    assert_near(counts, counts.round(), 1e-12)
    assert set(counts.round().unique().tolist()) == {0.0, 1.0}, "nothing is used twice"
    assert counts.sum().round() + sum(tallies.values()) == sum(len(mine.pieces) for mine in walks)
    for mine in walks:
        assert sorted(set(mine.pieces)) == list(range(PIECES)), "everything was handed out"


@pytest.mark.parametrize("late", ["carry", "count"])
@pytest.mark.parametrize("quorum", ["solo", "majority", "3", "auto", "majority-random"])
def test_eager_uses_every_gradient_exactly_once(quorum: str, late: str) -> None:
    walks = walk(
        f"eager:quorum={quorum},late={late},max_staleness=64,repair=none",
        WORLD,
        12,
        basis(12),
        start=[0.0] * (WORLD * 12),
        make=sgd(1.0),
        imbalance="exponential:mean_ms=150",
    )
    assert torch.equal(-walks[0].end * WORLD, torch.ones(WORLD * 12, dtype=torch.float64))


def test_eager_that_drops_uses_no_gradient_twice() -> None:
    walks = walk(
        "eager-solo:late=drop,grace=0",
        WORLD,
        12,
        basis(12),
        start=[0.0] * (WORLD * 12),
        make=sgd(1.0),
        imbalance=UNEVEN,
    )
    counts = -walks[0].end * WORLD
    assert set(counts.unique().tolist()) == {0.0, 1.0}
    assert counts.sum() == sum(len(record.contributions) for record in rounds_of(walks))


# -- what a round is -----------------------------------------------------------------------------------------------


def by_rank(record: Round) -> dict[int, int]:
    return {c.rank: int(c.samples) for c in record.contributions}


def replayed(records: Sequence[Round]) -> list[Tensor]:
    """One model that takes the mean gradient over the union of the micro-batches that each round finished."""
    begun = [0] * WORLD
    history: list[Tensor] = []  # the weights that each round began with

    def gradient(number: int, weights: Tensor) -> Tensor:
        history.append(weights)
        finished = []
        for c in sorted(records[number].contributions, key=lambda c: (c.rank, c.version)):
            count = int(c.samples)
            finished += [pull(c.rank, begun[c.rank] + nth, history[c.version]) for nth in range(count)]
            begun[c.rank] += count
        return torch.stack(finished).mean(0)

    return plain(sgd(0.2, momentum=0.9), [1.0] * 6, gradient, len(records), [record.stride for record in records])


@pytest.mark.parametrize(
    "strategy",
    ["nonblocking:work=0,repair=none", "nonblocking:work=0.9,repair=none", "dropcompute:tau_ms=61,rest=carry"],
)
def test_a_round_is_the_gradient_of_the_mean_loss_over_the_union_of_finished_micro_batches(strategy: str) -> None:
    walks = walk_in_rounds(
        f"{strategy},normalise=finished",
        [range(PIECES)] * WORLD,
        PARTS,
        pull,
        start=[1.0] * 6,
        make=sgd(0.2, momentum=0.9),
        imbalance=UNEVEN,
    )
    records, weights = rounds_of(walks), versions(walks)
    assert len({tuple(by_rank(record).items()) for record in records}) > 1
    for record in records:
        stamps = [(c.rank, c.version) for c in record.contributions]
        assert len(set(stamps)) == len(stamps), "a rank is in a round once, and at most once more with what came late"
        assert all(c.late == (c.version < record.number) for c in record.contributions)
    for number, expected in enumerate(replayed(records)):
        assert_near(weights[number], expected)


def test_a_rank_that_has_finished_nothing_changes_nothing_whatever_it_computes() -> None:
    def steps(garbage: float) -> dict[int, Tensor]:
        def gradient(rank: int, piece: int, weights: Tensor) -> Tensor:
            return torch.full_like(weights, garbage) if rank == 3 else pull(rank, piece, weights)

        walks = walk_in_rounds(
            "nonblocking",
            [range(2 * PARTS)] * 3 + [range(1)],
            PARTS,
            gradient,
            start=[1.0] * 6,
            imbalance=Table(80, 112, 96, 100_000),
            finishes=False,
        )
        before = [r.number for r in rounds_of(walks) if 3 not in by_rank(r)]
        assert len(before) >= 2
        return {number: versions(walks)[number] for number in before}

    clean, garbled = steps(0.0), steps(1e300)
    assert clean.keys() == garbled.keys()
    assert all(torch.equal(clean[number], garbled[number]) for number in clean)


def test_a_late_gradient_of_nonblocking_is_the_one_its_rank_was_busy_with() -> None:
    walks = walk_in_rounds("nonblocking", [range(PIECES)] * WORLD, PARTS, pull, start=[1.0] * 6, imbalance=UNEVEN)
    late = [(record, c) for record in rounds_of(walks) for c in record.contributions if c.version != record.number]
    assert len({c.rank for _, c in late}) > 1
    assert all(c.late and c.samples == 1 and record.staleness(c) == 1 for record, c in late)
    for record in rounds_of(walks):
        assert max(Counter(c.rank for c in record.contributions if c.late).values(), default=0) <= 1


def test_a_late_gradient_of_nonblocking_that_computes_again_is_one_that_was_all_its_rank_had() -> None:
    data = [range(PIECES)] * 3 + [range(4)]
    walks = walk_in_rounds("nonblocking:busy=again", data, PARTS, pull, start=[1.0] * 6, imbalance=VERY_SLOW)
    late = [(record, c) for record in rounds_of(walks) for c in record.contributions if c.version != record.number]
    assert late
    assert all(c.late and c.samples == 1 and 0 < record.staleness(c) <= 8 for record, c in late)
    assert {c.rank for _, c in late} == {3}


# -- DropCompute's threshold ---------------------------------------------------------------------------------------


def test_dropcompute_stops_at_the_first_boundary_later_than_tau() -> None:
    walks = walk_in_rounds(
        "dropcompute:tau_ms=61", [range(PIECES)] * WORLD, PARTS, pull, start=[1.0] * 6, imbalance=UNEVEN
    )
    untimed, _, *timed = rounds_of(walks)
    assert by_rank(untimed) == dict.fromkeys(range(WORLD), PARTS), "nobody saw when the first one began"
    assert len(timed) > 3
    for record in timed[:-1]:
        assert by_rank(record) == {0: 7, 1: 5, 2: 6, 3: 3}  # the first multiple of 10, 14, 12, 21 beyond 61


def test_all_ranks_find_the_same_best_threshold_by_themselves() -> None:
    walks = walk_in_rounds(
        "dropcompute:calibrate=12",
        [range(20 * PARTS)] * WORLD,
        PARTS,
        lambda rank, piece, weights: weights - rank,
        imbalance="exponential:mean_ms=400",
        look=lambda engine: (engine.state.get("tau"), dict(engine.ledger.told)),
    )
    found = {mine.seen[-1][0] for mine in walks}
    assert len(found) == 1
    (tau,) = found
    assert tau is not None
    told = walks[0].seen[-1][1]
    steps = [[[told[rank][step, n] for n in range(PARTS + 1)] for rank in range(WORLD)] for step in range(6, 13)]
    longest = max(row[-2] for rows in steps for row in rows)
    assert score(longest, steps) == pytest.approx(0.0, abs=1e-12)
    least = min(row[PARTS // 2] for rows in steps for row in rows)
    grid = [least + (longest - least) * n / (CANDIDATES - 1) for n in range(CANDIDATES)]
    assert score(tau, steps) == pytest.approx(max(score(candidate, steps) for candidate in grid))
    assert score(tau, steps) > 0
