import itertools
import json
from collections import Counter

import pytest

from outpace.errors import OutpaceError
from outpace.observe.perfetto import to_chrome, write_chrome
from outpace.observe.reader import read_trace
from tests.support import made_traces
from tests.support.made_traces import header, steps, write


@pytest.fixture
def trace(tmp_path):
    return read_trace(made_traces.eager(tmp_path / "run"))


def drawn(trace, phase):
    return [event for event in to_chrome(trace)["traceEvents"] if event["ph"] == phase]


def test_a_host_is_a_process_and_a_rank_is_a_named_thread(trace):
    names = {(e["name"], e["pid"], e["tid"]): e["args"].get("name") for e in drawn(trace, "M")}
    assert names["process_name", 0, 0] == "a"
    assert names["process_name", 1, 0] == "b"
    assert names["thread_name", 0, 0] == "rank 0"
    assert names["thread_name", 1, 1] == "rank 1"


def test_every_span_lies_within_its_step_and_none_overlap(trace):
    for rank in trace.ranks.values():
        spans = [e for e in drawn(trace, "X") if e["tid"] == rank.rank]
        last = max([step.end_ns for step in rank.steps] + [pause.end_ns for pause in rank.pauses]) / 1000
        assert all(e["dur"] >= 0 and e["ts"] >= 0 and e["ts"] + e["dur"] <= last for e in spans)
        for one, following in itertools.pairwise(spans):
            assert one["ts"] + one["dur"] <= following["ts"] + 1e-6


def test_a_step_is_drawn_as_computing_waiting_and_applying(trace):
    first = [e for e in drawn(trace, "X") if e["tid"] == 0][:3]
    assert [(e["name"], e["ts"], e["dur"]) for e in first] == [
        ("computing", 0, 10_000),
        ("waiting", 10_000, 2_000),
        ("applying", 12_000, 1_000),
    ]
    assert {e["args"]["step"] for e in first} == {1}


def test_pauses_are_drawn(trace):
    assert Counter(e["name"] for e in drawn(trace, "X"))["synchronize"] == 1
    assert Counter(e["name"] for e in drawn(trace, "X"))["finish"] == 1


def test_every_round_is_an_instant_of_the_rank_that_recorded_it(trace):
    assert [(e["name"], e["ts"], e["tid"]) for e in drawn(trace, "i")] == [
        ("round 0", 12_000, 0),
        ("round 1", 24_000, 0),
        ("round 2", 40_000, 0),
    ]


def test_an_arrow_leads_from_a_late_contribution_to_the_round_that_took_it_in(trace):
    (start,), (end,) = drawn(trace, "s"), drawn(trace, "f")
    assert (start["id"], start["name"], start["cat"]) == (end["id"], end["name"], end["cat"])
    computing = next(e for e in drawn(trace, "X") if e["tid"] == 1 and e["args"] == {"step": 2})
    assert (start["pid"], start["tid"]) == (1, 1)
    assert computing["ts"] <= start["ts"] < computing["ts"] + computing["dur"]
    assert (end["ts"], end["tid"], end["bp"]) == (40_000, 0, "e")


def test_arrows_come_in_pairs_also_when_ranks_are_missing(tmp_path):
    (made_traces.eager(tmp_path) / "rank-00001.jsonl").unlink()
    alone = read_trace(tmp_path)
    assert [e["id"] for e in drawn(alone, "s")] == [e["id"] for e in drawn(alone, "f")] == []


def test_lateness_is_a_counter_that_is_drawn_when_it_changes(trace):
    found = [(e["tid"], e["name"], e["args"]["rounds"]) for e in drawn(trace, "C")]
    assert found == [(0, "rank 0 late by", 0), (1, "rank 1 late by", 0), (1, "rank 1 late by", 1)]


def test_a_wait_that_was_rounded_up_stays_within_its_step(tmp_path):
    made = {**steps([(1, 1, 0)])[0], "waited_s": 0.001009}
    write(tmp_path, 0, [header(0, 1), made])
    assert max(e["ts"] + e["dur"] for e in drawn(read_trace(tmp_path), "X")) == 2_000


def test_the_file_holds_the_same_document(trace, tmp_path):
    write_chrome(trace, tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text()) == to_chrome(trace)


def test_a_file_that_cannot_be_written_is_an_error_that_says_so(trace, tmp_path):
    with pytest.raises(OutpaceError, match=r"cannot be written to .*nowhere/x: No such file or directory"):
        write_chrome(trace, tmp_path / "nowhere" / "x")
    with pytest.raises(OutpaceError, match="No space left on device"):
        write_chrome(trace, "/dev/full")
