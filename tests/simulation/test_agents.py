"""Several hosts with a store between them: what the log and published rows cost there."""

from __future__ import annotations

import itertools

import pytest

from outpace.engines.virtual.agents import Agents, Load
from outpace.engines.virtual.clock import Clock
from outpace.engines.virtual.network import network
from outpace.simulation import Scenario, Timing, full_round_s, simulate_timing, simulate_training
from outpace.strategies import names
from outpace.workloads import workload

MB = 1_000_000
#: Only the store costs anything: 1 ms for an entry.
STORE = "zero:ranks_per_host={},store_set_us=1000"
UNEVEN = "exponential:mean_ms=60"


def run(strategy: str, hosts: int, each: int = 1, steps: int = 5, **options: object) -> Timing:
    given = {"network": STORE.format(each), **options}
    return simulate_timing(strategy, Scenario(hosts * each, steps, **given))  # type: ignore[arg-type]


def load_of(timing: Timing) -> Load:
    assert timing.load is not None
    return timing.load


def agents(spec: str, world: int, payload: int = MB) -> tuple[Clock, Agents]:
    clock = Clock()
    return clock, Agents(clock, network(spec), world, payload)


# -- one host ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["allreduce", "eager-solo", "wagma", "d-psgd", "sgp"])
def test_one_host_needs_no_store(strategy: str) -> None:
    """To the last nanosecond: the digest has all times."""
    scenarios = [Scenario(8, 20, imbalance=UNEVEN, network=name) for name in ("cluster", "ethernet")]
    on_cluster, without = (simulate_timing(strategy, scenario) for scenario in scenarios)
    assert on_cluster == without
    assert on_cluster.load is None


# -- by hand -----------------------------------------------------------------------------------------------------------


def test_a_round_of_two_hosts_by_hand() -> None:
    """Both arrive at once. The first one writes what it has (1 ms), then what the other sent meanwhile (1 ms), and at
    last that both have the result (1 ms). Nothing else takes time."""
    timing = run("allreduce", hosts=2)
    load = load_of(timing)
    assert timing.seconds == pytest.approx(5 * (0.1 + 0.003))
    assert (load.rounds, load.entries, load.cuts) == (5, 5 * 3, 5 * 3)
    assert load.ops == 5 * 6
    assert load.store_busy_s == pytest.approx(5 * 0.003)
    assert timing.store_ops_per_round == 6
    assert load.ops_per_s == pytest.approx(5 * 6 / timing.seconds)
    assert load.store_share == pytest.approx(0.003 / 0.103)


@pytest.mark.parametrize(("hosts", "depth"), [(2, 1), (5, 1), (16, 2), (100, 3)])
def test_what_the_store_is_asked_grows_with_the_depth_of_the_tree_when_all_arrive_at_once(
    hosts: int, depth: int
) -> None:
    """An entry of the leader's own arrival, one of each level's, one of the result."""
    load = load_of(run("allreduce", hosts))
    assert load.entries == load.rounds * (2 + depth)


@pytest.mark.parametrize("hosts", [20, 80, 500])
def test_an_agent_works_for_every_message_and_has_no_more_of_them_on_more_hosts(hosts: int) -> None:
    """Per round, the leader: 8 batches of each level, 8 words at the end, and as many entries to 8 hosts each."""
    load = load_of(run("allreduce", hosts, network="zero:ranks_per_host=1,store_set_us=1000,send_us=10,receive_us=10"))
    messages = load.leader_busy_s / 10e-6 / load.rounds
    levels = load.entries / load.rounds
    assert 8 * levels <= messages <= 8 * (2 * levels + 1)
    assert levels <= 10


def test_ranks_of_a_host_that_speak_at_once_share_an_entry() -> None:
    load = load_of(run("allreduce", hosts=2, each=8))
    assert load.entries == load.rounds * 3
    assert load.events == load.rounds * (16 + 1)


def test_what_is_said_while_an_agent_commits_goes_into_its_next_entry() -> None:
    clock, between = agents(STORE.format(4), world=8)
    said = []
    for rank, time_ns in ((0, 0), (1, 10_000), (2, 900_000), (3, 5_000_000)):
        clock.at(time_ns, lambda rank=rank: between.post(rank, lambda: said.append((clock.now_ns, rank))))
    clock.run()
    assert said == [(1_000_000, 0), (2_000_000, 1), (2_000_000, 2), (6_000_000, 3)]
    assert between.load().entries == 3


@pytest.mark.parametrize(("hosts", "depth"), [(2, 1), (9, 1), (10, 2), (73, 2), (74, 3)])
def test_of_many_hosts_one_writes_for_all_and_entries_go_down_a_tree(hosts: int, depth: int) -> None:
    clock, between = agents(STORE.format(1) + ",latency_us=10", world=hosts)
    heard = []
    between.post(1, lambda: heard.append((clock.now_ns, between.notice_ns())))
    clock.run()
    hop, set_, message = 10_000, 1_000_000, 10_000
    assert heard == [(hop + message + set_ + message, depth * hop)]
    assert between.load().ops == 2


def test_the_first_host_says_once_that_all_have_a_result() -> None:
    clock, between = agents(STORE.format(1), world=3)
    ends: list[int] = []
    between.post_of_all(lambda: ends.append(clock.now_ns))
    clock.run()
    assert ends == [1_000_000]
    assert between.load().entries == 1


# -- rows --------------------------------------------------------------------------------------------------------------


def test_a_row_goes_to_the_hosts_of_its_readers_over_links_that_ranks_share() -> None:
    """A row takes 1 ms on a link. Ranks 0 and 1 share one, and so do all who send to the same host."""
    clock, between = agents("zero:ranks_per_host=2,gbps=8,store_set_us=1", world=6)
    between.send(0, readers=[1])
    assert between.rows_there_in_ns([0]) == 0
    between.send(0, readers=[2, 3])
    assert between.rows_there_in_ns([0]) == 1_000_000
    between.send(1, readers=[4])
    assert between.rows_there_in_ns([1]) == 2_000_000
    between.send(2, readers=[5])
    assert between.rows_there_in_ns([2]) == 3_000_000
    assert between.rows_there_in_ns([0, 1, 2]) == 3_000_000
    clock.run(until_ns=4_000_000)
    assert between.rows_there_in_ns([0, 1, 2]) == 0
    assert between.load().link_share == pytest.approx(0.5)


def test_a_row_without_named_readers_goes_to_all_hosts() -> None:
    _, between = agents("zero:ranks_per_host=2,gbps=8,store_set_us=1", world=10)
    between.send(3)
    assert between.rows_there_in_ns([3]) == 4_000_000


@pytest.mark.parametrize("strategy", ["ad-psgd:graph=ring", "dsgd-aau", "d-psgd"])
def test_weights_go_to_the_hosts_of_neighbours_only(strategy: str) -> None:
    """On a ring a host has two neighbours. A rank of `ad-psgd` publishes again when somebody swapped with it meanwhile;
    to all hosts, its five steps would take 70 ms."""
    spec = "zero:ranks_per_host=2,gbps=8,store_set_us=1"
    load = load_of(run(strategy, hosts=8, each=2, network=spec, payload_mb=1.0))
    assert 0 < load.link_busy_s <= (2 if strategy.startswith("ad") else 1) * 5 * 2 * 0.001 * 1.01


@pytest.mark.parametrize(("hosts", "each"), [(4, 1), (8, 2), (64, 1), (64, 4)])
def test_a_link_carries_less_than_two_vectors_for_the_mean_of_a_group(hosts: int, each: int) -> None:
    """Five iterations, of which every third is of all hosts."""
    spec = f"zero:ranks_per_host={each},gbps=8,store_set_us=1"
    load = load_of(run("wagma:sync_every=3", hosts=hosts, each=each, network=spec, payload_mb=1.0))
    share = {4: 2, 8: 4, 64: 8}[hosts]  # hosts of a group
    vectors = 4 * 2 * (share - 1) / share + 2 * (hosts - 1) / hosts
    assert load.link_busy_s == pytest.approx(vectors * 0.001, rel=0.01)
    assert load.link_busy_s < 5 * 2 * 0.001


def test_the_hosts_of_a_group_have_their_mean_when_the_last_of_them_is_free() -> None:
    """A row takes 1 ms on a link, the sum of two hosts takes one: half of it each way and back."""
    clock, between = agents("zero:ranks_per_host=1,gbps=8,store_set_us=1", world=6)
    between.send(0, readers=[5])
    between.average((0, 1), rows=1)
    between.average((2, 3), rows=1)
    assert [between.mean_there_in_ns(rank) for rank in range(4)] == [2_000_000, 2_000_000, 1_000_000, 1_000_000]
    clock.run(until_ns=1_500_000)
    assert between.mean_there_in_ns(0) == 500_000


# -- what always holds -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["allreduce", "eager-majority", "wagma", "d-psgd", "sgp"])
def test_more_hosts_never_make_a_step_cheaper(strategy: str) -> None:
    seconds = [run(strategy, hosts, each=4, network="cluster:ranks_per_host=4").seconds for hosts in (1, 2, 4, 8)]
    slack = 0.98 if strategy == "sgp" else 1.0  # a larger world has other distances, and a delay other ways to spread
    assert all(more >= slack * fewer for fewer, more in itertools.pairwise(seconds))
    assert seconds[0] < seconds[-1]


@pytest.mark.parametrize("payload", [1_000, 25 * MB])
def test_more_hosts_never_make_a_round_cheaper(payload: int) -> None:
    links = network("cluster")
    costs = [links.reduce_ns(8 * hosts, range(8 * hosts), payload) for hosts in (1, 2, 3, 16, 64, 256)]
    assert costs == sorted(costs)


@pytest.mark.parametrize("strategy", ["allreduce", "eager-majority", "d-psgd"])
def test_a_slower_store_never_makes_a_run_quicker(strategy: str) -> None:
    spec = "zero:ranks_per_host=2,store_set_us={0}"
    seconds = [run(strategy, hosts=4, each=2, network=spec.format(us)).seconds for us in (0, 1, 100, 1000)]
    assert seconds == sorted(seconds)


def test_a_store_is_never_busy_for_longer_than_a_run_takes() -> None:
    for name in ("allreduce", "d-psgd"):
        slow = "zero:ranks_per_host=4,store_set_us=20000"
        load = load_of(simulate_timing(name, Scenario(8, 20, compute_ms=1, network=slow)))
        assert 0.8 < load.store_share <= 1


def test_a_round_takes_at_least_what_is_said_of_it() -> None:
    scenario = Scenario(ranks=16, steps=5, network="cluster:ranks_per_host=4")
    timing = simulate_timing("allreduce", scenario)
    assert timing.seconds >= 5 * (0.1 + full_round_s(scenario))


@pytest.mark.parametrize("strategy", names())
def test_every_strategy_comes_to_its_end_and_again_to_the_same(strategy: str) -> None:
    scenario = Scenario(ranks=6, steps=8, imbalance=UNEVEN, network="cluster:ranks_per_host=2")
    timing = simulate_timing(strategy, scenario)
    load = load_of(timing)
    assert load.entries
    assert timing == simulate_timing(strategy, scenario)


@pytest.mark.parametrize("strategy", ["allreduce", "eager-majority", "wagma", "d-psgd"])
def test_replicas_end_with_the_same_weights(strategy: str) -> None:
    """Which `simulate_training` checks. At full quorum they are those of one host: only time is another."""
    pair = [Scenario(ranks=4, steps=8, imbalance=UNEVEN, network=name) for name in ("cluster:ranks_per_host=2", "host")]
    on_two, on_one = (simulate_training(strategy, scenario, workload("hyperplane", 0)) for scenario in pair)
    assert load_of(on_two).entries
    if strategy == "allreduce":
        assert on_two.weights == on_one.weights
