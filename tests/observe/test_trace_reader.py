import json

import pytest

from outpace.errors import OutpaceError, TraceInvalid
from outpace.observe.reader import read_trace
from outpace.observe.schema import Given, Pause
from tests.support import made_traces
from tests.support.made_traces import BOOT_NS, MS, UNIX_S, header, steps, write


def test_a_trace_is_read_with_every_step_of_every_rank(tmp_path):
    trace = read_trace(made_traces.balanced(tmp_path, world=3, count=4))
    assert (trace.world, trace.strategy, trace.payload_bytes) == (3, "ddp", 4096)
    assert list(trace.ranks) == [0, 1, 2]
    assert trace.skipped == ()
    for rank in trace.ranks.values():
        assert rank.host == "a"
        assert [step.number for step in rank.steps] == [1, 2, 3, 4]
        assert [(s.compute_s, s.waited_s, s.apply_s) for s in rank.steps] == [(0.010, 0.002, 0.001)] * 4
        assert rank.steps[1].begin_ns == rank.steps[0].end_ns == 13 * MS


def test_one_file_is_a_trace_of_one_rank(tmp_path):
    made_traces.balanced(tmp_path, world=2)
    trace = read_trace(str(tmp_path / "rank-00001.jsonl"))
    assert list(trace.ranks) == [1]
    assert trace.world == 2
    assert trace.skipped == ("no trace of rank 0 of 2 can be read",)


def test_rounds_pauses_and_lateness_are_read(tmp_path):
    trace = read_trace(made_traces.eager(tmp_path))
    assert [(r.number, r.world, r.void, r.recorded_by) for r in trace.rounds] == [
        (0, 2, False, 0),
        (1, 2, False, 0),
        (2, 2, False, 0),
    ]
    assert trace.rounds[2].contributions == (Given(0, 3, 2), Given(1, 2, 1))
    assert [step.late for step in trace.ranks[1].steps] == [0, 1]
    assert trace.ranks[0].pauses == (Pause("synchronize", 40 * MS, 41 * MS), Pause("finish", 41 * MS, 43 * MS))


def test_hosts_with_different_clocks_are_put_on_one(tmp_path):
    trace = read_trace(made_traces.eager(tmp_path))
    assert {rank.host for rank in trace.ranks.values()} == {"a", "b"}
    assert trace.ranks[0].steps[0].begin_ns == trace.ranks[1].steps[0].begin_ns == 0
    assert trace.ranks[1].steps[1].ready_ns == 31 * MS


def test_ranks_of_one_host_share_its_clock_whenever_they_looked_at_the_time_of_day(tmp_path):
    write(tmp_path, 0, [header(0, 2), *steps([(10, 2, 1)])])
    write(tmp_path, 1, [header(1, 2, unix_s=UNIX_S + 0.004), *steps([(10, 2, 1)])])
    trace = read_trace(tmp_path)
    assert trace.ranks[0].steps[0] == trace.ranks[1].steps[0]


def test_a_restarted_rank_has_the_steps_of_all_its_lives(tmp_path):
    later = BOOT_NS + 1000 * MS
    again = [header(0, 1, incarnation=2, monotonic_ns=later, unix_s=UNIX_S + 1), *steps([(5, 1, 1)], later)]
    write(tmp_path, 0, [header(0, 1), *steps([(10, 2, 1)] * 2), *again])
    found = read_trace(tmp_path).ranks[0].steps
    assert [step.number for step in found] == [1, 2, 1]
    assert found[2].begin_ns == 1000 * MS


def test_the_first_thing_that_happened_is_the_beginning_of_time(tmp_path):
    trace = read_trace(made_traces.eager(tmp_path))
    assert min(step.begin_ns for rank in trace.ranks.values() for step in rank.steps) == 0


# -- what is not a trace -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "contents",
    [
        b"",
        b"\n\n\n",
        b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR",
        b'{"traceEvents": []}',
        b"[1, 2, 3]",
        b"null",
        b'"step"',
        b"[" * 100_000,
        b"1" * 6000,
        json.dumps(header(0, 1)).encode(),
        b'{"step": 1}',
    ],
)
def test_what_holds_no_step_is_refused_with_its_name_and_what_to_do(tmp_path, contents):
    file = tmp_path / "rank-00000.jsonl"
    file.write_bytes(contents)
    for path in (file, tmp_path):
        with pytest.raises(TraceInvalid, match=r"rank-00000.jsonl: .*it has no step.* Give the directory that"):
            read_trace(path)


def test_a_place_without_files_is_refused(tmp_path):
    with pytest.raises(TraceInvalid, match=r"there is no trace in '.*': it has no rank-\*\.jsonl"):
        read_trace(tmp_path)
    with pytest.raises(TraceInvalid, match=r"there is no trace at '.*nowhere': neither a directory nor a file"):
        read_trace(tmp_path / "nowhere")
    with pytest.raises(TraceInvalid, match="neither a directory nor a file"):
        read_trace("/dev/zero")
    with pytest.raises(TraceInvalid, match=r"'x+\.\.\.' cannot be read: File name too long"):
        read_trace("x" * 5000)
    assert issubclass(TraceInvalid, OutpaceError)


def test_a_file_that_says_nowhere_whose_it_is_is_refused(tmp_path):
    made_traces.balanced(tmp_path, world=1)
    lines = (tmp_path / "rank-00000.jsonl").read_text().splitlines()[1:]
    (tmp_path / "other.jsonl").write_text("\n".join(lines))
    with pytest.raises(TraceInvalid, match="neither a header nor its name says which rank it is of"):
        read_trace(tmp_path / "other.jsonl")


# -- damage ------------------------------------------------------------------------------------------------------------


def damaged(directory, change):
    """A balanced trace of two ranks with rank 1's lines changed."""
    made_traces.balanced(directory)
    file = directory / "rank-00001.jsonl"
    lines = file.read_text().splitlines()
    file.write_text("\n".join(change(lines)))
    return read_trace(directory)


def test_a_line_cut_in_the_middle_is_left_out(tmp_path):
    trace = damaged(tmp_path, lambda lines: [*lines[:-1], lines[-1][:40]])
    assert [len(rank.steps) for rank in trace.ranks.values()] == [3, 2]
    assert trace.skipped == ("rank-00001.jsonl: line 4 is not JSON (cut in the middle?), skipped",)


def test_garbage_between_the_lines_is_left_out_and_counted(tmp_path):
    trace = damaged(tmp_path, lambda lines: [lines[0], *["\x1b[2J"] * 10, *lines[1:], "", "[]"])
    assert len(trace.ranks[1].steps) == 3
    assert trace.skipped == (
        "rank-00001.jsonl: line 2 is not JSON (cut in the middle?), skipped",
        "rank-00001.jsonl: line 3 is not JSON (cut in the middle?), skipped",
        "rank-00001.jsonl: line 4 is not JSON (cut in the middle?), skipped",
        "rank-00001.jsonl: 8 more unreadable lines skipped",
    )


def test_unknown_kinds_of_line_are_left_out_and_unknown_fields_do_not_matter(tmp_path):
    trace = damaged(tmp_path, lambda lines: [*lines, '{"gpu": 3}', lines[-1].replace("{", '{"gpu": 3, ')])
    assert len(trace.ranks[1].steps) == 4
    assert trace.skipped == ("rank-00001.jsonl: line 5 is of a kind this version of outpace does not know, skipped",)


def test_without_a_header_the_name_says_whose_file_it_is(tmp_path):
    trace = damaged(tmp_path, lambda lines: lines[1:])
    assert trace.ranks[1].steps == trace.ranks[0].steps
    assert trace.ranks[1].host == "unknown"
    assert trace.skipped == ("rank-00001.jsonl: begins without a header, so it is read as if on another rank's clock",)


def test_an_empty_file_leaves_its_rank_out(tmp_path):
    trace = damaged(tmp_path, lambda lines: [])
    assert list(trace.ranks) == [0]
    assert trace.skipped == (
        "rank-00001.jsonl: it has no step, so this rank is left out",
        "no trace of rank 1 of 2 can be read",
    )


def test_missing_ranks_are_named_up_to_a_few(tmp_path):
    write(tmp_path, 3, [header(3, 64), *steps([(10, 2, 1)])])
    assert read_trace(tmp_path).skipped == ("no trace of rank 0, 1, 2, 4, 5, 6, 7, 8 and 55 more of 64 can be read",)


def test_files_of_an_older_and_larger_run_are_left_out(tmp_path):
    made_traces.balanced(tmp_path, world=3)
    for rank in range(2):
        write(tmp_path, rank, [header(rank, 2, unix_s=UNIX_S + 60), *steps([(1, 1, 1)])])
    trace = read_trace(tmp_path)
    assert list(trace.ranks) == [0, 1]
    assert trace.skipped == ("rank-00002.jsonl: it is of another run, with 3 ranks instead of 2; left out",)


def test_a_second_file_of_one_rank_is_left_out(tmp_path):
    made_traces.balanced(tmp_path)
    (tmp_path / "rank-1.jsonl").write_bytes((tmp_path / "rank-00001.jsonl").read_bytes())
    trace = read_trace(tmp_path)
    assert trace.skipped == ("rank-1.jsonl: rank 1 has another file; this one is left out",)


def test_a_header_of_another_rank_is_not_believed(tmp_path):
    trace = damaged(tmp_path, lambda lines: [*lines[:2], json.dumps(header(0, 2)), *lines[2:]])
    assert len(trace.ranks[1].steps) == 3
    assert trace.skipped == ("rank-00001.jsonl: line 3 is a header of rank 0 in the file of rank 1, skipped",)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("begin", -1, "has begin=-1"),
        ("begin", "7", "has begin='7'"),
        ("begin", True, "has begin=True"),
        ("begin", 1.5, "has begin=1.5"),
        ("begin", None, "has begin=None"),
        ("begin", 0, "goes from begin=0 over"),
        ("ready", 2**70, "has ready=1180591620717411303424"),
        ("end", BOOT_NS, "goes from begin="),
        ("waited_s", float("nan"), "has waited_s=nan"),
        ("waited_s", float("inf"), "has waited_s=inf"),
        ("waited_s", -0.1, "has waited_s=-0.1"),
        ("waited_s", 9.0, "has waited_s=9.0"),
        ("apply_s", [], "has apply_s=[]"),
        ("late", -3, "has late=-3"),
        ("step", "\x1b[31m" * 30, r"has step='\x1b[31m"),
        ("samples", 10**400, "has samples=1000000000"),
    ],
)
def test_values_that_cannot_be_are_not_believed(tmp_path, field, value, words):
    made_traces.balanced(tmp_path)
    write(tmp_path, 1, [header(1, 2), *steps([(10, 2, 1)] * 2), {**steps([(10, 2, 1)], first=3)[0], field: value}])
    trace = read_trace(tmp_path)
    assert len(trace.ranks[1].steps) == 2
    assert len(trace.skipped) == 1
    assert trace.skipped[0].startswith(f"rank-00001.jsonl: line 4 {words}")
    assert trace.skipped[0].isprintable()
    assert len(trace.skipped[0]) < 150


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("world", 0, "has world=0"),
        ("rank", 2, "has rank=2"),
        ("host", 5, "has host=5"),
        ("unix_s", "now", "has unix_s='now'"),
        ("payload_bytes", -1, "has payload_bytes=-1"),
        ("trace", "1", "has trace='1'"),
    ],
)
def test_a_header_that_cannot_be_is_as_good_as_none(tmp_path, field, value, words):
    made_traces.balanced(tmp_path)
    write(tmp_path, 1, [{**header(1, 2), field: value}, *steps([(10, 2, 1)])])
    trace = read_trace(tmp_path)
    assert len(trace.ranks[1].steps) == 1
    assert trace.skipped[0] == f"rank-00001.jsonl: line 1 {words}, skipped"


def test_what_a_newer_format_says_is_not_guessed_at(tmp_path):
    made_traces.balanced(tmp_path)
    write(tmp_path, 1, [header(1, 2, trace=2), *steps([(10, 2, 1)])])
    trace = read_trace(tmp_path)
    assert list(trace.ranks) == [0]
    assert trace.skipped[0] == "rank-00001.jsonl: is of format 2, and this version of outpace reads 1"


@pytest.mark.parametrize("rows", [5, [5], [[0, 1]], [[0, 1, "x"]], [[-1, 1, 1]], {"0": 1}])
def test_rounds_that_cannot_be_are_not_believed(tmp_path, rows):
    line = {"round": 0, "at": BOOT_NS, "world": 1, "contributions": rows, "void": False}
    write(tmp_path, 0, [header(0, 1), *steps([(10, 2, 1)]), line])
    trace = read_trace(tmp_path)
    assert trace.rounds == ()
    assert "contributions" in trace.skipped[0] or "rank=-1" in trace.skipped[0] or "version='x'" in trace.skipped[0]


def test_lost_events_and_a_cut_are_told(tmp_path):
    write(tmp_path, 0, [header(0, 1), *steps([(10, 2, 1)]), {"lost": 3}, {"lost": 4}, {"cut": "No space\x07"}])
    assert read_trace(tmp_path).skipped == (
        r"rank-00000.jsonl: recording ended early: No space\x07",
        "rank-00000.jsonl: 7 records were lost because the disk was slow",
    )


def test_names_from_files_are_made_printable(tmp_path):
    write(tmp_path, 0, [header(0, 1, host="\ud800\x1b]0;x\x07" + "h" * 300, strategy="\n"), *steps([(10, 2, 1)])])
    trace = read_trace(tmp_path)
    assert trace.ranks[0].host.isprintable()
    assert len(trace.ranks[0].host) < 250
    assert trace.strategy == r"\n"


def test_values_nested_to_any_depth_are_left_out(tmp_path):
    made_traces.balanced(tmp_path, world=1)
    step = json.dumps(steps([(10, 2, 1)])[0])
    with (tmp_path / "rank-00000.jsonl").open("a") as file:
        for depth in range(1, 1100):
            file.write(step.replace('"begin": ', f'"begin": {"[" * depth}1{"]" * depth}, "first": ') + "\n")
    trace = read_trace(tmp_path)
    assert len(trace.ranks[0].steps) == 3
    assert trace.skipped[-1] == "rank-00000.jsonl: 1096 more unreadable lines skipped"


def test_an_endless_line_is_left_out(tmp_path):
    made_traces.balanced(tmp_path)
    with (tmp_path / "rank-00001.jsonl").open("a") as file:
        file.write("x" * 2_500_000 + "\n" + json.dumps(steps([(10, 2, 1)], first=4)[0]))
    trace = read_trace(tmp_path)
    assert len(trace.ranks[1].steps) == 4
    assert trace.skipped == ("rank-00001.jsonl: line 5 is too long, skipped",)
