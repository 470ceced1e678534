"""The benchmark between hosts comes to its figures."""

from bench import network as between_hosts
from bench.run import Run


def test_the_benchmark_measures_gloo_and_outpace(network, monkeypatch):
    monkeypatch.setattr(between_hosts, "RANKS_PER_HOST", 1)
    figures = between_hosts.measure(Run(repeat=1, quick=True))
    assert [row["link"] for row in figures["rows"]] == ["unshaped", "1 Gbit/s"]
    for row in figures["rows"]:
        sent = row["link_bytes"]["gloo"]["median"]  # a ring of two sends each byte once
        assert figures["payload_bytes"] < sent < 1.1 * figures["payload_bytes"]
        assert set(row["seconds"]) == set(between_hosts.SYSTEMS)
        assert row["link_bytes"]["round in bf16"]["median"] < 0.6 * row["link_bytes"]["round"]["median"]
    assert figures["is_right"]
    assert figures["waits"][0]["waited_share"] == 1.0, "with Gloo everybody waits for the slow rank"
    assert len(between_hosts.tables(figures)) == 2
