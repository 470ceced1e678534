"""What a step costs on the wire between hosts, as their interfaces count it: with every codec, and in groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.network.launch import torchrun
from tests.network.namespaces import Hosts

PROGRAM = Path(__file__).parent / "programs" / "link_bytes.py"
PARAMETERS, STEPS, DENSITY = 1 << 20, 20, 0.01
CODECS = ["none", "bf16", "global-qsgd", f"ok-topk:density={DENSITY}"]
CODED = {codec: f"allreduce:codec={codec}" for codec in CODECS}
PLAIN_BYTES = 4 * PARAMETERS  #: one vector: what each of two hosts sends for a sum in float32
K = DENSITY * PARAMETERS
CONTROL_BYTES = 40_000  #: of a round: the log, signs of life, what goes with a result


@pytest.fixture(scope="module")
def costs(network):
    """Of each codec, the bytes of a round that each host sent and received."""
    with Hosts(2) as hosts, torchrun(hosts, PROGRAM, str(PARAMETERS), str(STEPS), *CODED.values(), ranks=2) as job:
        reports = [{codec: report[CODED[codec]] for codec in CODECS} for report in job.reports()]
    for codec in CODECS:
        for host in (0, 1):
            cost = reports[2 * host][codec]
            print(f"{codec}, host {host}: {cost['sent_bytes']:,.0f} bytes sent, {cost['received_bytes']:,.0f} received")
    return {
        codec: [report[codec][way] for report in reports for way in ("sent_bytes", "received_bytes")]
        for codec in CODECS
    }


def share_of_plain(costs, codec):
    """The largest of any host and direction."""
    return max(mine / plain for mine, plain in zip(costs[codec], costs["none"], strict=True))


def test_plain_sums_cost_what_a_ring_costs(costs):
    assert min(costs["none"]) > PLAIN_BYTES
    assert max(costs["none"]) < 1.05 * PLAIN_BYTES + CONTROL_BYTES


def test_bf16_halves_the_bytes(costs):
    assert share_of_plain(costs, "bf16") < 0.55


def test_global_qsgd_quarters_the_bytes(costs):
    assert share_of_plain(costs, "global-qsgd") < 0.30


def test_ok_topk_stays_under_6k_words_with_all_control_traffic(costs):
    assert max(costs[CODECS[-1]]) < 6 * K * 4


def test_ok_topk_costs_what_its_formula_says(costs):
    hosts = ranks = 2
    words = 1.5 * (ranks + 1) * K * (hosts - 1) / hosts
    assert max(costs[CODECS[-1]]) < 1.05 * words * 4 + CONTROL_BYTES


@pytest.mark.parametrize(("count", "ranks"), [(2, 2), (4, 1), (6, 1)])
def test_a_group_of_hosts_costs_each_at_most_two_vectors(network, count, ranks):
    """Every tenth of these iterations averages all hosts: both are in the mean."""
    patient = "wagma:grace=5,sync_every=10"  # nobody is late
    with Hosts(count) as hosts, torchrun(hosts, PROGRAM, str(PARAMETERS), str(STEPS), patient, ranks=ranks) as job:
        costs = [report[patient] for report in job.reports()]
    sent, received = ([cost[way] for cost in costs] for way in ("sent_bytes", "received_bytes"))
    print(f"{count} hosts of {ranks}: {max(sent):,.0f} bytes sent at most, {max(received):,.0f} received")
    assert min(received) > 0.9 * PLAIN_BYTES, "the hosts do not average"
    assert max(*sent, *received) < 2 * PLAIN_BYTES + CONTROL_BYTES
