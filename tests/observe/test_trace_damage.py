"""Whatever became of a trace's files: what can be read is read, and nothing but `TraceInvalid` is raised."""

import json
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from outpace.cli.trace import print_report, to_json
from outpace.errors import TraceInvalid
from outpace.observe.perfetto import to_chrome
from outpace.observe.reader import read_trace
from tests.support import made_traces


def files() -> list[bytes]:
    with tempfile.TemporaryDirectory() as directory:
        path = made_traces.eager(Path(directory))
        return [file.read_bytes() for file in sorted(path.iterdir())]


WHOLE = files()
KEYS = ["trace", "step", "round", "sync", "finished", "lost", "cut", *made_traces.header(0, 1), "begin", "ready", "end"]
KEYS += ["waited_s", "apply_s", "late", "samples", "version", "at", "contributions", "void"]
NUMBERS = st.one_of(st.integers(), st.integers(0, 5), st.floats(), st.just(made_traces.BOOT_NS))
TEXTS = st.sampled_from(["", "x", "1", "\x1b[2J", "\ud800", "[red]", "\n" * 300])
PLAIN = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
VALUES = st.one_of(PLAIN, st.lists(PLAIN, max_size=3), st.lists(st.lists(PLAIN, max_size=3), max_size=2))
OBJECTS = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=12)

hurried = settings(deadline=None, max_examples=150, derandomize=True, print_blob=True)


def look_at(contents):
    """Reads these files and does all that is done with a trace. None if there is nothing to read."""
    with tempfile.TemporaryDirectory() as directory:
        for rank, content in enumerate(contents):
            Path(directory, f"rank-{rank:05d}.jsonl").write_bytes(content)
        try:
            trace = read_trace(directory)
        except TraceInvalid:
            return None
    json.dumps(to_chrome(trace), allow_nan=False)
    json.dumps(to_json(trace, None), allow_nan=False)
    assert all(words.isprintable() for words in trace.skipped)
    assert all(rank.steps for rank in trace.ranks.values())
    return trace


def test_the_trace_is_whole_before_it_is_damaged():
    assert look_at(WHOLE).skipped == ()


def test_a_file_cut_at_any_byte_keeps_the_steps_before_it():
    whole = look_at(WHOLE)
    for place in range(len(WHOLE[0])):
        trace = look_at([WHOLE[0][:place], WHOLE[1]])
        assert trace.ranks[1].steps == whole.ranks[1].steps
        found = trace.ranks[0].steps if 0 in trace.ranks else ()
        assert found == whole.ranks[0].steps[: len(found)]
        assert len(found) >= WHOLE[0][:place].count(b'\n{"step"') - 1


@hurried
@given(st.integers(0, len(WHOLE[0]) - 1), st.integers(1, 255))
def test_any_byte_changed_harms_one_step_at_most(place, change):
    flipped = bytearray(WHOLE[0])
    flipped[place] ^= change
    trace = look_at([bytes(flipped), WHOLE[1]])
    if place > WHOLE[0].index(b"\n"):  # a header stands for the whole file
        assert len(trace.ranks[0].steps) >= 2
        assert len(trace.ranks[1].steps) == 2


@hurried
@given(st.lists(st.binary(max_size=50), max_size=5), st.lists(st.binary(max_size=200), max_size=5))
def test_garbage_is_never_believed(between, alone):
    lines = WHOLE[0].splitlines()
    trace = look_at([b"\n".join([*lines, *between]), b"\n".join(alone)])
    assert len(trace.ranks[0].steps) == 3
    assert list(trace.ranks) == [0]


@settings(hurried, max_examples=50)
@given(st.lists(OBJECTS, max_size=5))
def test_any_values_in_any_field_are_read_or_left_out(objects):
    lines = WHOLE[0].splitlines() + [json.dumps(made).encode() for made in objects]
    print_report(look_at([b"\n".join(lines), WHOLE[1]]), None)
    look_at([b"\n".join(lines[9:])])
