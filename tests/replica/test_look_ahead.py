"""Where gradients are computed while work is late, and what the weights are meanwhile."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from outpace.interface import Result
from outpace.protocol.round import Contribution, Lateness, Round
from outpace.protocol.rules import Rules
from outpace.replica.look_ahead import LookAhead
from outpace.replica.replica import OptimizerReplica
from outpace.strategies import strategy
from tests.support.by_hand import Table, Walk, rounds_of, sgd, versions, walk_in_rounds

SHAPES = [(3,), (40, 30), (1200, 1000), ()]  # the third one is a piece of its own


def made(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    torch.manual_seed(1)
    return [nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in SHAPES]


def step(parameters: list[nn.Parameter], by: float) -> None:
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(by)


def copies(tensors: list[nn.Parameter] | list[torch.Tensor]) -> list[torch.Tensor]:
    return [t.detach().clone() for t in tensors]


def all_equal(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, some, others))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_model_is_ahead_by_a_part_of_the_last_step_and_the_weights_are_kept_bit_for_bit(dtype: torch.dtype) -> None:
    parameters = made(dtype)
    look = LookAhead(parameters)
    before = copies(parameters)
    look.begin_step(0.5)
    step(parameters, 0.25)
    weights = copies(parameters)

    assert look.is_due
    look.go()

    assert not look.is_due
    assert all_equal(look.weights(), weights)
    for there, was, now in zip(parameters, before, weights, strict=True):
        torch.testing.assert_close(there.detach(), now + 0.5 * (now - was))
    look.go_back()
    assert all_equal(copies(parameters), weights)
    assert all_equal(look.weights(), weights)


def test_a_step_is_taken_from_the_weights_and_not_from_ahead_of_them() -> None:
    parameters, plainly = made(), made()
    look = LookAhead(parameters)
    for ahead in (1.0, 0.3, 0.0, 2.0):
        look.begin_step(ahead)
        step(parameters, 0.25)
        step(plainly, 0.25)
        if look.is_due:
            look.go()

    assert all_equal(look.weights(), copies(plainly))
    assert not all_equal(copies(parameters), copies(plainly))


def test_rounds_that_are_applied_at_once_are_looked_ahead_from_once() -> None:
    parameters = made()
    look = LookAhead(parameters)
    for by in (7.0, 0.25):  # what counts is the last one
        look.begin_step(1.0)
        step(parameters, by)
    weights = copies(parameters)
    look.go()

    for there, now in zip(parameters, weights, strict=True):
        torch.testing.assert_close(there.detach(), now + 0.25)


def test_what_others_write_meanwhile_stays_written_and_the_rank_looks_ahead_no_more() -> None:
    parameters = made()
    look = LookAhead(parameters)
    look.begin_step(1.0)
    step(parameters, 0.25)
    weights = copies(parameters)
    look.go()
    with torch.no_grad():
        parameters[1].clamp_(-0.1, 0.1)
    look.accept([1])
    look.begin_step(1.0)

    assert torch.equal(parameters[0], weights[0])
    assert float(parameters[1].detach().abs().max()) <= 0.11
    step(parameters, 0.25)
    assert not look.is_due


def test_weights_from_elsewhere_are_not_replaced_by_those_that_were_kept() -> None:
    parameters = made()
    look = LookAhead(parameters)
    look.begin_step(1.0)
    step(parameters, 0.25)
    look.go()
    step(parameters, 5.0)  # as if a snapshot had been adopted
    adopted = copies(parameters)
    look.begin_anew()

    look.go_back()
    assert all_equal(copies(parameters), adopted)
    assert all_equal(look.weights(), adopted)


def test_a_replica_is_at_its_weights_again_and_keeps_nothing_once_nobody_is_late() -> None:
    weight, plainly = (nn.Parameter(torch.tensor([1.0, -2.0])) for _ in range(2))
    replica = OptimizerReplica(torch.optim.SGD([weight], lr=0.1, momentum=0.9), None)
    alone = torch.optim.SGD([plainly], lr=0.1, momentum=0.9)
    for ahead in (0.0, 1.0, 0.5, 0.0, 0.0, 2.0, 0.0):
        plainly.grad = torch.tensor([0.5, 1.0])
        alone.step()
        replica.apply(Result(late_by(0)._replace(ahead=ahead), [torch.tensor([0.5, 1.0])], b"\1", b""))
        replica.begin_computing()

        assert torch.equal(replica.capture().tensors[0], plainly)
        assert torch.equal(weight, plainly) == replica.look.is_idle == (not ahead)


def late_by(*lags: int, number: int = 20) -> Round:
    given = tuple(Contribution(i, 1, 1, number - lag, 1.0, 0, lag > 0) for i, lag in enumerate(lags))
    return Round(number, given, len(given), None)


def test_nobody_looks_ahead_while_nobody_is_late_and_soon_again_when_nobody_is_any_more() -> None:
    lateness = Lateness(Rules(4, repair="look-ahead"))
    lateness.settle(late_by(0, 0, 0, 0))
    assert lateness.ahead == 0.0
    for _ in range(40):
        lateness.settle(late_by(0, 0, 1, 3))
    assert lateness.ahead == pytest.approx(1.5, rel=0.05)
    for _ in range(60):
        lateness.settle(late_by(0, 0, 0, 0))
    assert lateness.ahead == 0.0


@pytest.mark.parametrize("repair", ["discount", "none"])
def test_other_repairs_compute_at_the_weights(repair: str) -> None:
    lateness = Lateness(Rules(4, repair=repair))
    lateness.settle(late_by(0, 0, 1, 3))
    assert lateness.ahead == 0.0


def test_late_work_of_one_round_has_its_full_weight_only_where_ranks_look_ahead() -> None:
    assert strategy("eager-majority").rules(4).usual_lag == 1
    assert strategy("eager-majority:repair=discount").rules(4).usual_lag == 0


UNEVEN = Table(100, 104, 190, 210)  # two of four are a round late, every time
STEPS = 60


def trained(strategy: str, lr: float, momentum: float = 0.9) -> tuple[list[Walk], list[list[torch.Tensor]]]:
    """On 1/2 |x|^2, the same for all ranks and without noise. Also where each rank computed its gradients."""
    computed: list[list[torch.Tensor]] = [[] for _ in range(4)]

    def gradient(rank: int, piece: int, weights: torch.Tensor) -> torch.Tensor:
        computed[rank].append(weights.clone())
        return weights.clone()

    walks = walk_in_rounds(
        *(strategy, [range(STEPS)] * 4, 1, gradient),
        start=[1.0, -2.0],
        make=sgd(lr, momentum=momentum),
        imbalance=UNEVEN,
    )
    return walks, computed


def test_gradients_are_computed_as_far_ahead_as_the_round_says_and_weights_are_equal_on_all_ranks() -> None:
    walks, computed = trained("eager:quorum=2,grace=0", lr=0.01)
    weights, records = versions(walks), rounds_of(walks)  # raises if two ranks had other bits in the same round
    assert any(record.ahead > 0.3 for record in records)
    for mine, places in zip(walks, computed, strict=True):
        contributions = [c for record in records for c in record.contributions if c.rank == walks.index(mine)]
        for c, place in zip(sorted(contributions, key=lambda c: c.step), places, strict=True):
            if c.version < 2:
                continue
            now, before, ahead = weights[c.version - 1], weights[c.version - 2], records[c.version - 1].ahead
            torch.testing.assert_close(place, now + ahead * (now - before))


def test_a_learning_rate_that_late_work_makes_diverge_trains_where_ranks_look_ahead() -> None:
    """Lateness and momentum alone, without any noise."""

    def left(strategy: str) -> float:
        return float(trained(strategy, lr=1.2)[0][0].end.norm())

    assert left("eager:quorum=2,grace=0,repair=none") > 100
    assert left("eager:quorum=2,grace=0,repair=discount") > 10
    assert left("eager:quorum=2,grace=0") < left("allreduce") < 1


def test_without_momentum_there_is_no_way_to_look_along() -> None:
    walks, computed = trained("eager:quorum=2,grace=0", lr=0.1, momentum=0.0)
    weights = versions(walks)
    assert any(record.ahead > 0.3 for record in rounds_of(walks))
    known = [torch.tensor([1.0, -2.0], dtype=torch.float64), *weights.values()]
    assert all(any(torch.equal(place, mine) for mine in known) for places in computed for place in places)
