"""The page about scaling is made of figures: of the store, which is measured, and of simulated hosts."""

import json

import pytest

from bench import scaling, store_times
from bench.figures import spread
from bench.run import Run

NETWORK = "cluster:store_set_us=20"
TIMES = {"set_s": 2e-5, "lost_s": 2e-5, "alone_s": 1e-4, "sets_per_s": 1e4}


def store(**others):
    return {
        "clients": 8,
        "calls": 100,
        "entry_bytes": 512,
        **{name: spread([value]) for name, value in {**TIMES, **others}.items()},
    }


def results():
    rows = [
        scaling._row(name, hosts, 2, compute_ms, NETWORK)
        for compute_ms in scaling.COMPUTE_MS
        for name in scaling.STRATEGIES
        for hosts in (1, 2)
    ]
    machine = {"cores": 2, "cpu": "a processor", "torch": "2"}
    return {
        "machine": machine,
        "date": "2026-01-01",
        "quick": True,
        "store": store(),
        "messages": {"messages": 100, "send_us": spread([50.0]), "receive_us": spread([70.0])},
        "ops": [{"strategy": "allreduce", "counts": {"2": 7.2, "4": 3.1}}],
        "network": NETWORK,
        "rows": rows,
        "slower": {"times": 3, "rows": rows[-1:]},
    }


def test_the_page_says_what_is_simulated_and_names_every_strategy(tmp_path):
    found, page = tmp_path / "scaling.json", tmp_path / "scaling.md"
    found.write_text(json.dumps(results()))
    assert scaling.main(["--render", "--results", str(found), "--page", str(page)]) == 0
    text = page.read_text()
    assert "Everything here is simulated, except the store's own times and those of a message between agents." in text
    assert NETWORK in text
    assert "50.0 µs of processor time (50.0 to 50.0)" in text
    assert "| `allreduce` | 7.2 | 3.1 |" in text
    for name in scaling.STRATEGIES:
        assert f"| `{name}` | 2 | 16 |" in text


def test_one_host_has_all_of_its_own_throughput_and_no_store():
    row = next(row for row in results()["rows"] if row["hosts"] == 1)
    assert scaling._relative(row, [row]) == {"of_one": 1, "ideal_of_one": 1, "links_leave": 1, "agents_leave": 1}
    assert row["entries"] == row["ops_per_round"] == row["store_share"] == 0


@pytest.mark.parametrize(
    ("ideal", "free", "rate", "first"),
    [
        ((10, 10), (10, 9.5), (10, 9.4), None),
        ((10, 10), (10, 8.0), (10, 7.9), "links"),
        ((10, 10), (10, 9.5), (10, 5.0), "agents"),
        ((10, 10), (10, 8.0), (10, 5.0), "links and agents"),
    ],
)
def test_what_leaves_less_than_nine_tenths_has_broken(ideal, free, rate, first):
    rows = [
        {"strategy": "s", "compute_ms": 1.0, "hosts": hosts, "ideal_rate": i, "free_store_rate": f, "rate": r}
        for hosts, i, f, r in zip((8, 16), ideal, free, rate, strict=True)
    ]
    found = scaling._breaks("s", 1.0, rows)
    assert found["first"] == first
    assert {found["links"], found["agents"]} <= {None, 16}


def test_every_time_of_a_real_store_is_measured():
    found = store_times.measure(Run(repeat=1, quick=True))
    assert found["clients"] == 2
    assert min(found[name]["median"] for name in TIMES) > 0
