"""Several hosts on one machine, told apart by OUTPACE_HOST: the same files, and what holds on one host holds here."""

from collections import Counter

import pytest
import torch

import outpace
from outpace import strategies
from outpace.mixing.schedules import Placement, placed_group
from tests.support import family, ranks
from tests.support.agreement import contributions
from tests.support.family_checks import CHOICES, check
from tests.support.launches import in_one_launch

ON_THREE = ("eager-majority", "wagma", "d-psgd", "ad-psgd", "sgp", "dsgd-aau", "ringmaster")


def trained(names, count, hosts):
    cases = {name: (CHOICES.get(name, name), 16, True) for name in names}
    return in_one_launch(family.train, count, cases, hosts=hosts)


@pytest.fixture(scope="module")
def on_two():
    return trained(strategies.names(), 4, 2)


@pytest.fixture(scope="module")
def on_three():
    return trained(ON_THREE, 5, 3)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", strategies.names())
def test_every_strategy_ends_with_the_same_bits_on_two_hosts(name, on_two):
    check(on_two[name], name)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ON_THREE)
def test_strategies_end_with_the_same_bits_on_three_hosts_of_different_sizes(name, on_three):
    check(on_three[name], name)


def test_two_hosts_of_four_ranks_are_one_of_eight_but_for_rounding():
    one = outpace.spawn(family.train_in_lock_step, 8, (20,))
    two = outpace.spawn(family.train_in_lock_step, 8, (20,), hosts=2)
    assert len({digest for digest, _ in one}) == 1
    assert len({digest for digest, _ in two}) == 1
    for here, there in zip(one[0][1], two[0][1], strict=True):
        torch.testing.assert_close(here, there, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("hosts", [pytest.param(2, marks=pytest.mark.long), 3])
def test_no_step_is_lost_or_doubled_when_ranks_of_several_hosts_swap(hosts):
    # Swaps keep the mean of all weights, so that it counts the steps.
    for run in zip(*outpace.spawn(family.meet_and_count, 2 * hosts, (2, 12), hosts=hosts), strict=True):
        steps = [mine for _, _, mine in run]
        for met, final, _ in run:
            assert met == pytest.approx([6] * 2 * hosts)
            assert final == pytest.approx(steps)


@pytest.mark.parametrize("hosts", [2, pytest.param(3, marks=pytest.mark.long)])
def test_a_host_all_of_whose_ranks_lag_takes_up_the_snapshots_of_others(hosts):
    # Its only rank lags further than results are kept, so that nobody on its host writes a snapshot.
    reports = outpace.spawn(ranks.one_slow_rank, hosts, ("eager-solo", 150), hosts=hosts)
    assert len({report.final for report in reports}) == 1
    given = contributions(reports)
    assert max(Counter(given).values()) == 1
    dropped = sum(stats.dropped for stats in reports[0].stats.ranks)
    assert len(given) + dropped == sum(report.stats.steps for report in reports)


@pytest.mark.parametrize(("hosts", "count"), [(3, 3), (2, 4), (3, 5)])
def test_a_group_of_hosts_has_the_mean_of_its_ranks(hosts, count):
    """With one rank a host these are the groups of the paper. Nobody is late; all average in every fourth iteration."""
    steps, every = 9, 4
    walks = outpace.spawn(family.walk_apart, count, (f"wagma:grace=20,sync_every={every}", steps), hosts=hosts)
    placement = Placement([host for host, _ in walks])
    assert len(placement.ranks) == hosts
    weights = torch.zeros(count, count, dtype=torch.float64)
    for step in range(steps):
        weights -= torch.eye(count, dtype=torch.float64) * (step + 1)
        groups = [placed_group(rank, step, placement, None) for rank in range(count)]
        groups = [range(count)] * count if (step + 1) % every == 0 else groups
        weights = torch.stack([weights[list(members)].mean(0) for members in groups])
        found = torch.stack([walk[step] for _, walk in walks])
        torch.testing.assert_close(found, weights)
