"""Recordings that version 0.1.0 wrote are read as it read them, and its lines are still what is written."""

import json
from pathlib import Path

import pytest

from outpace.cli.trace import to_json
from outpace.observe.live import Follower
from outpace.observe.perfetto import to_chrome
from outpace.observe.reader import read_trace
from outpace.observe.schema import Header, Step, TracedRound, parse, to_bytes
from tests.support.made_traces import eager

OLD = Path(__file__).parent / "data" / "0.1.0"
NOW_NS = 1_257_200_000_000  # soon after they ended
RUNS = ["ddp", "eager-solo"]


def known(run):
    """What version 0.1.0 made of its own recording."""
    return json.loads((OLD / f"{run}.json").read_text())


def plain(document):
    return json.loads(json.dumps(document))


def same(found, expected):
    """Equal but for the last bits of floating-point numbers, and for what is known of a run since then."""
    if isinstance(expected, dict):
        return found.keys() >= expected.keys() and all(same(found[key], expected[key]) for key in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    return found == (pytest.approx(expected, rel=1e-12) if isinstance(expected, float) else expected)


@pytest.mark.parametrize("run", RUNS)
def test_every_figure_of_an_old_recording_is_what_it_was(run):
    document = to_json(read_trace(OLD / run), None)
    assert document.pop("outpace")
    assert document.pop("quorums") == [], "not recorded then"
    assert same(plain(document), known(run)["trace"])


@pytest.mark.parametrize("run", RUNS)
def test_an_old_recording_can_be_followed(run):
    document = Follower(OLD / run).poll(NOW_NS).to_json()
    words = {"directory": str(OLD / run), "late_words": "all ranks that recorded have finished"}
    assert same(plain(document), {**known(run)["watch"], **words})


@pytest.mark.parametrize("run", RUNS)
def test_an_old_recording_is_drawn_as_it_was(run):
    found, expected = (
        sorted(map(json.dumps, drawn["traceEvents"]))
        for drawn in (to_chrome(read_trace(OLD / run)), known(run)["perfetto"])
    )
    assert found == expected


@pytest.mark.parametrize("file", sorted(OLD.glob("*/rank-*.jsonl")), ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_what_is_written_has_the_same_keys_and_values_in_the_same_order(file):
    for line in file.read_bytes().splitlines():
        record = parse(line)
        written = to_bytes((lambda record=record: record,))
        assert list(json.loads(written).items()) == list(json.loads(line).items())


def test_records_that_are_read_again_are_the_same(tmp_path):
    eager(tmp_path)
    kinds = set()
    for file in tmp_path.iterdir():
        for line in file.read_bytes().splitlines():
            record = parse(line)
            assert parse(to_bytes((lambda record=record: record,))) == record
            kinds.add(type(record))
    assert kinds > {Header, Step, TracedRound}
