"""What communication costs: a LogGP model with hosts."""

from __future__ import annotations

import pytest

from outpace.engines.virtual.network import NETWORKS, network
from outpace.errors import InvalidRules, UnknownName

MB = 1_000_000


def reduce_ms(spec: str, ranks: int, contributors: range, payload: int = MB) -> float:
    return network(spec).reduce_ns(ranks, contributors, payload) / 1e6


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_works_alone(name: str) -> None:
    costs = [reduce_ms(name, ranks, range(ranks)) for ranks in (1, 2, 8, 1024)]
    assert costs == sorted(costs)
    assert costs[0] >= 0
    assert (costs[-1] > 0) == (name != "zero")
    assert all(network(name).arrive_ns(ranks, MB) >= 0 for ranks in (1, 2, 8, 1024))


def test_zero_costs_nothing() -> None:
    assert reduce_ms("zero", 1024, range(1024)) == 0
    assert network("zero").arrive_ns(1024, MB) == 0


def test_one_host_reads_every_contribution_and_writes_their_sum() -> None:
    spec = "host:host_overhead_us=0,host_gbytes_per_s=1"
    assert reduce_ms(spec, 8, range(8)) == pytest.approx(9.0)
    assert reduce_ms(spec, 8, range(3)) == pytest.approx(4.0)


def test_two_hosts_exchange_one_vector() -> None:
    assert reduce_ms("zero:ranks_per_host=4,gbps=8", 8, range(8)) == pytest.approx(1.0)


@pytest.mark.parametrize("hosts", [2, 3, 7, 16, 128])
def test_large_vectors_cost_little_more_on_many_hosts_and_small_ones_the_logarithm(hosts: int) -> None:
    large = reduce_ms("zero:ranks_per_host=1,gbps=8", hosts, range(hosts), 1000 * MB)
    assert large <= 2 * 1000 * (hosts - 1) / hosts + 1e-6
    small = reduce_ms("zero:ranks_per_host=1,gbps=8,latency_us=1000", hosts, range(hosts), 1)
    assert small == pytest.approx((hosts - 1).bit_length(), rel=1e-3)


def test_the_fullest_host_decides() -> None:
    spec = "zero:ranks_per_host=4,host_gbytes_per_s=1"
    assert reduce_ms(spec, 8, [0, 1, 2, 4]) == pytest.approx(4.0)
    assert reduce_ms(spec, 8, [0, 4]) == pytest.approx(2.0)


def test_an_arrival_is_known_on_other_hosts_after_a_message() -> None:
    links = network("zero:ranks_per_host=4,latency_us=10,overhead_us=1")
    assert links.arrive_ns(4, MB) == 0
    assert links.arrive_ns(8, MB) == 12_000


def test_a_measured_cost_is_taken_as_it_is() -> None:
    assert reduce_ms("fixed:round_ms=3.5", 64, range(64), 100 * MB) == 3.5


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("ethernet:gbps=-1", "gbps=-1 must be a number, 0 or more"),
        ("ethernet:gbps=0", "gbps must be greater than 0"),
        ("ethernet:latency_us=nan", "latency_us=nan"),
        ("ethernet:latency_us=inf", "latency_us=inf"),
        ("ethernet:ranks_per_host=1.5", "ranks_per_host=1.5 must be a whole number"),
        ("ethernet:speed=3", "has no option 'speed'"),
    ],
)
def test_bad_options_are_named(spec: str, words: str) -> None:
    with pytest.raises(InvalidRules, match=words.replace("(", r"\(")):
        network(spec)


def test_an_unknown_network_is_named_with_its_neighbours() -> None:
    with pytest.raises(UnknownName, match="did you mean ethernet"):
        network("ethernat")
