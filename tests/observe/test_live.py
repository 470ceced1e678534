"""Following a run: what is known does not depend on how it was read, and nothing in a file can hurt."""

import json
import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outpace.observe import live as following
from outpace.observe.live import Follower, current_run
from outpace.observe.reader import read_trace
from tests.support.made_traces import BOOT_NS, MS, UNIX_S, balanced, eager, header, steps, write

NOW = BOOT_NS + 60 * MS


def lines(*documents):
    return b"".join(json.dumps(document).encode() + b"\n" for document in documents)


def followed(directory, now_ns=NOW):
    return Follower(directory).poll(now_ns)


def eager_rank(rank, world, count, compute_ms, **more):
    """A rank that takes so long for each step, and waits for nobody."""
    made = steps([(compute_ms, 0, 1)] * count, **more)
    numbered = [{**line, "round": n, "version": n, "late": 0} for n, line in enumerate(made)]
    return [header(rank, world, strategy="eager-solo"), *numbered]


def solo_rounds(rank, count, every_ms):
    """Rounds of this rank alone."""
    contributions = [[[rank, n + 1, n]] for n in range(count)]
    return [
        {"round": n, "at": BOOT_NS + int((n + 1) * every_ms * MS), "world": 4, "contributions": given, "void": False}
        for n, given in enumerate(contributions)
    ]


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_read_in_any_pieces_it_is_the_same_as_read_at_once(tmp_path_factory, data):
    directory = tmp_path_factory.mktemp("run")
    eager(directory)
    junk = [b"\n", b"garbage\n", b'{"step": 1}\n', b"\xff\x00\n", b'{"lost": 3}\n']
    whole = {}
    for file in sorted(directory.iterdir()):
        pieces = file.read_bytes().splitlines(keepends=True)
        for nonsense in data.draw(st.lists(st.sampled_from(junk), max_size=3)):
            pieces.insert(data.draw(st.integers(1, len(pieces))), nonsense)
        whole[file.name] = b"".join(pieces)[: data.draw(st.integers(0, 3000))]
        file.write_bytes(whole[file.name])
    at_once = followed(directory)

    slowly = tmp_path_factory.mktemp("run")
    follower = Follower(slowly)
    cuts = {
        name: [*sorted(data.draw(st.lists(st.integers(0, len(b)), max_size=6))), len(b)] for name, b in whole.items()
    }
    while any(cuts.values()):
        name = data.draw(st.sampled_from([name for name, rest in cuts.items() if rest]))
        (slowly / name).write_bytes(whole[name][: cuts[name].pop(0)])
        follower.poll(data.draw(st.integers(0, NOW)))
    assert follower.poll(NOW).to_json() == {**at_once.to_json(), "directory": str(slowly)}


def test_figures_are_those_of_the_whole_trace(tmp_path):
    live, trace = followed(eager(tmp_path)), read_trace(tmp_path)
    assert (live.strategy, live.world, live.rounds) == ("eager-solo", 2, 3)
    assert [rank.steps for rank in live.ranks] == [len(rank.steps) for rank in trace.ranks.values()] == [3, 2]
    assert live.ranks[0].compute_ms == pytest.approx(10)
    assert live.ranks[0].waited_ms == pytest.approx(7 / 3)
    assert [rank.share for rank in live.ranks] == [3 / 5, 2 / 5]
    assert live.staleness == {0: 4, 1: 1}
    assert (live.skipped, live.lost) == (0, 0)


def test_ranks_of_another_host_are_put_on_one_clock(tmp_path):
    first, second = followed(eager(tmp_path)).ranks
    assert second.host == "b"
    assert second.begin_ns == BOOT_NS + 13 * MS
    assert first.end_ns is not None
    assert abs(second.end_ns - first.end_ns) < 10 * MS


def test_a_torn_line_waits_for_its_end(tmp_path):
    whole = lines(header(0, 1), *steps([(10, 2, 1)] * 2))
    file = tmp_path / "rank-00000.jsonl"
    file.write_bytes(whole[:-10])
    follower = Follower(tmp_path)
    assert follower.poll(NOW).ranks[0].steps == 1
    file.write_bytes(whole)
    live = follower.poll(NOW)
    assert live.ranks[0].steps == 2
    assert live.skipped == 0


def test_only_what_is_new_is_read(tmp_path, monkeypatch):
    directory = balanced(tmp_path / "run")
    follower, read = Follower(directory), []
    follower.poll(NOW)
    monkeypatch.setattr(following.FollowedFile, "_feed", lambda self, data: read.append(data))
    follower.poll(NOW)
    assert read == []
    with (directory / "rank-00001.jsonl").open("ab") as file:
        file.write(b"more")
    follower.poll(NOW)
    assert read == [b"more"]


@pytest.mark.parametrize("grows", [False, True])
def test_a_file_that_was_begun_anew_is_read_anew(tmp_path, grows):
    """Also when it is longer than it was before anybody looks."""
    balanced(tmp_path, world=1, count=4)
    follower = Follower(tmp_path)
    assert follower.poll(NOW).ranks[0].steps == 4
    again = header(0, 1, unix_s=UNIX_S + 9, pid=4711)
    write(tmp_path, 0, [again, *steps([(20, 2, 1)] * (9 if grows else 1))])
    live = follower.poll(NOW)
    assert live.ranks[0].steps == (9 if grows else 1)
    assert live.ranks[0].compute_ms == pytest.approx(20)


def test_a_replaced_file_is_read_anew(tmp_path):
    balanced(tmp_path, world=1, count=4)
    follower = Follower(tmp_path)
    follower.poll(NOW)
    other = tmp_path / "other"
    other.write_bytes(lines(header(0, 1), *steps([(10, 2, 1)] * 2)))
    os.replace(other, tmp_path / "rank-00000.jsonl")
    assert follower.poll(NOW).ranks[0].steps == 2


def test_ranks_appear_when_they_begin_and_are_gone_when_removed(tmp_path):
    follower = Follower(tmp_path / "later")
    assert follower.poll(NOW).world is None
    balanced(tmp_path / "later", world=3)
    (tmp_path / "later" / "rank-00002.jsonl").rename(tmp_path / "kept")
    assert [rank.rank for rank in follower.poll(NOW).ranks] == [0, 1]
    (tmp_path / "kept").rename(tmp_path / "later" / "rank-00002.jsonl")
    assert [rank.rank for rank in follower.poll(NOW).ranks] == [0, 1, 2]


def test_junk_is_counted_and_passed_over(tmp_path):
    good = lines(header(0, 1), *steps([(10, 2, 1)] * 2, loss=float("nan")), *steps([(10, 2, 1)] * 3, loss=-0.5))
    (tmp_path / "rank-00000.jsonl").write_bytes(b"\x89PNG\n" + good + b"[]\n" + b"x" * 2_000_000 + b"\n" + good)
    live = followed(tmp_path)
    assert (live.ranks[0].steps, live.ranks[0].loss, live.skipped) == (3, -0.5, 3 + 4)


@settings(deadline=None, max_examples=150)
@given(seed=st.integers(0, 2**32), noise=st.binary(max_size=200))
def test_no_bytes_make_it_raise(tmp_path_factory, seed, noise):
    directory = eager(tmp_path_factory.mktemp("run"))
    chance = random.Random(seed)
    follower = Follower(directory)
    for file in sorted(directory.iterdir()):
        data = bytearray(file.read_bytes())
        for _ in range(chance.randrange(8)):
            at = chance.randrange(len(data))
            data[at : at + chance.randrange(30)] = noise[: chance.randrange(len(noise) + 1)]
        file.write_bytes(data)
        json.dumps(follower.poll(chance.randrange(2**63)).to_json())


def test_what_is_no_file_is_no_rank(tmp_path):
    (tmp_path / "rank-00000.jsonl").mkdir()
    os.mkfifo(tmp_path / "rank-00001.jsonl")
    (tmp_path / "rank-00002.jsonl").symlink_to(tmp_path / "nowhere")
    (tmp_path / "rank-9999999.jsonl").write_bytes(lines(*steps([(1, 1, 1)])))
    live = followed(tmp_path)
    assert not live.has_begun
    assert not live.has_ended


def test_a_long_file_is_read_from_near_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(following, "TAIL_BYTES", 1000)
    monkeypatch.setattr(following, "LINE_BYTES", 1000)
    balanced(tmp_path, world=1, count=200)
    live = followed(tmp_path)
    assert (live.strategy, live.ranks[0].steps, live.skipped) == ("ddp", 200, 0)


# -- who is late -------------------------------------------------------------------------------------------------------


def test_a_rank_that_is_long_in_its_step_is_late(tmp_path):
    for rank in range(4):
        count = 4 if rank == 3 else 20
        write(tmp_path, rank, eager_rank(rank, 4, count, 299))
    live = followed(tmp_path, BOOT_NS + 6_100 * MS)
    assert live.late_rank == 3
    assert live.late_words == "rank 3 is late: 4.9 s into a step that usually takes 0.3 s"


def test_a_rank_that_waits_for_others_to_finish_is_not_late(tmp_path):
    waits = {"pausing": "finish", "begin": BOOT_NS + 1200 * MS}
    write(tmp_path, 0, [*eager_rank(0, 2, 4, 299), waits])
    write(tmp_path, 1, eager_rank(1, 2, 20, 299))
    live = followed(tmp_path, BOOT_NS + 6_100 * MS)
    assert (live.late_rank, live.late_words) == (None, "no rank is late")
    assert live.ranks[0].state == "finish"
    assert not live.has_ended


def test_a_rank_that_rounds_went_past_is_late_by_as_many(tmp_path):
    """Rank 1 takes 450 ms for what rank 0 does in 100: its second step has gone on since 460 ms."""
    write(tmp_path, 0, [*eager_rank(0, 2, 9, 99), *solo_rounds(0, 9, 100)])
    write(tmp_path, 1, eager_rank(1, 2, 1, 459))
    live = followed(tmp_path, BOOT_NS + 1_550 * MS)
    assert live.ranks[1].late_rounds == 5
    assert (live.late_rank, live.late_words) == (1, "rank 1 is late: 5 rounds behind")
    assert live.ranks[0].late_rounds == 0


def test_where_all_wait_for_all_the_last_to_be_ready_is_late(tmp_path):
    write(tmp_path, 0, [header(0, 2), *steps([(10, 22, 1)] * 5)])
    write(tmp_path, 1, [header(1, 2), *steps([(30, 2, 1)] * 5)])
    live = followed(tmp_path, BOOT_NS + 170 * MS)
    assert [rank.late_ms for rank in live.ranks] == [0, 20]
    assert (live.late_rank, live.late_words) == (
        1,
        "rank 1 is late: its gradients were ready 20 ms after the first rank's",
    )
    assert live.rounds_per_s is None


def test_when_nobody_goes_on_nobody_is_blamed(tmp_path):
    balanced(tmp_path, world=3, count=5)
    live = followed(tmp_path, BOOT_NS + 9_065 * MS)
    assert live.silent_s == pytest.approx(9)
    assert (live.late_rank, live.late_words) == (None, "no rank has finished a step for 9.0 s; one usually takes 13 ms")


# -- how fast ----------------------------------------------------------------------------------------------------------


def test_speeds_are_of_the_last_seconds_and_fall_when_nothing_comes(tmp_path):
    slow_then_fast = [(999, 0, 1)] * 10 + [(99, 0, 1)] * 60
    write(tmp_path, 0, [header(0, 1), *steps(slow_then_fast, samples=32.0)])
    end = BOOT_NS + 16_000 * MS
    live = followed(tmp_path, end)
    assert live.ranks[0].steps_per_s == pytest.approx(10)
    assert live.samples_per_s == pytest.approx(320)
    assert followed(tmp_path, end + 500 * MS).samples_per_s == pytest.approx(320), "what is not written is not missing"
    assert followed(tmp_path, end + 20_000 * MS).ranks[0].steps_per_s < 1


def test_slow_steps_have_a_speed_too(tmp_path):
    write(tmp_path, 0, [header(0, 1), *steps([(19_999, 0, 1)] * 7)])
    assert followed(tmp_path, BOOT_NS + 140_000 * MS).ranks[0].steps_per_s == pytest.approx(1 / 20)


def test_rounds_recorded_by_many_ranks_make_one_speed(tmp_path):
    rounds = solo_rounds(0, 400, 10)
    for rank in range(2):
        mine = rounds[:100] if rank else rounds[100:]  # rank 0 has recorded more than is remembered
        write(tmp_path, rank, [*eager_rank(rank, 2, 400, 9), *mine])
    assert followed(tmp_path, BOOT_NS + 4_000 * MS).rounds_per_s == pytest.approx(100)


# -- the end -----------------------------------------------------------------------------------------------------------


def test_it_has_ended_when_all_of_the_world_have(tmp_path):
    last = {"finished": BOOT_NS + 50 * MS}
    write(tmp_path, 0, [header(0, 2), *steps([(10, 2, 1)] * 3, loss=1.0), last])
    assert not followed(tmp_path).has_ended
    write(tmp_path, 1, [header(1, 2), *steps([(10, 2, 1)] * 3, loss=2.0), {"cut": "limit"}])
    live = followed(tmp_path)
    assert live.has_ended
    assert live.loss == 1.5
    assert [rank.state for rank in live.ranks] == ["finished", "cut"]


def test_a_restarted_rank_runs_again(tmp_path):
    life = [header(0, 1), *steps([(10, 2, 1)] * 3), {"finished": BOOT_NS + 50 * MS}]
    write(tmp_path, 0, [*life, header(0, 1, incarnation=2), *steps([(40, 2, 1)], BOOT_NS + 50 * MS, 4)])
    (rank,) = followed(tmp_path).ranks
    assert (rank.state, rank.steps, rank.compute_ms) == ("running", 4, pytest.approx(40))


def test_files_of_an_older_run_with_more_ranks_are_left_out(tmp_path):
    balanced(tmp_path, world=4)
    for rank in range(2):
        write(tmp_path, rank, [header(rank, 2, unix_s=UNIX_S + 100), *steps([(10, 2, 1)])])
    live = followed(tmp_path)
    assert (live.world, len(live.ranks)) == (2, 2)


def test_of_a_race_the_system_that_was_written_to_last_is_followed(tmp_path):
    assert current_run(tmp_path) == tmp_path
    for age, name in enumerate(["02-ddp", "01-eager-solo", "03-empty"]):
        balanced(tmp_path / name)
        for file in (tmp_path / name).iterdir():
            os.utime(file, (1000 - age, 1000 - age))
    assert current_run(tmp_path).name == "02-ddp"
    os.utime(tmp_path / "01-eager-solo" / "rank-00001.jsonl", (2000, 2000))
    assert current_run(tmp_path).name == "01-eager-solo"
