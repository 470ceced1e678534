"""Recording in real processes: what ranks write, and that it is true."""

import itertools
import json
import subprocess
import sys
from collections import Counter

import pytest
import torch

import outpace
from outpace.errors import OutpaceError, RankFailed
from outpace.observe.perfetto import to_chrome
from outpace.observe.reader import read_trace
from outpace.simulation.training import simulate
from tests.support import recording_ranks

LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"}
STEPS = 8


def nobody_went_ahead_of_anybody(trace):
    """Where everybody is waited for, nobody's step ends before everybody's gradients are there."""
    pairs = list(zip(*(rank.steps for rank in trace.ranks.values()), strict=True))
    assert len(pairs) == STEPS
    return all(max(s.ready_ns for s in steps) <= min(s.end_ns for s in steps) for steps in pairs)


def everything_is_in_order(trace):
    """A rank's times go forwards, and the parts of a step are no longer than the step."""
    for rank in trace.ranks.values():
        assert [step.number for step in rank.steps] == list(range(1, len(rank.steps) + 1))
        for step, following in itertools.pairwise(rank.steps):
            assert step.end_ns <= following.begin_ns
            assert step.waited_s + step.apply_s <= (step.end_ns - step.ready_ns) / 1e9 + 1e-5


def test_a_delayed_rank_is_seen_to_compute_longer_and_the_others_to_wait(tmp_path):
    outpace.spawn(recording_ranks.with_log_dir, 3, (str(tmp_path), "allreduce", STEPS, 1, 0.04))
    trace = read_trace(tmp_path)
    assert (trace.world, trace.strategy, trace.skipped) == (3, "allreduce", ())
    assert trace.payload_bytes == 4 * (12 * 16 + 16 + 16 + 1)
    everything_is_in_order(trace)
    assert nobody_went_ahead_of_anybody(trace)
    assert min(step.compute_s for step in trace.ranks[1].steps) >= 0.04
    for number in range(STEPS):
        assert max(trace.ranks.values(), key=lambda rank: rank.steps[number].ready_ns).rank == 1


def test_each_round_is_recorded_once_with_steps_that_were_recorded(tmp_path):
    stats = outpace.spawn(recording_ranks.with_log_dir, 3, (str(tmp_path), "eager-solo", STEPS, 2, 0.02))[0]
    trace = read_trace(tmp_path)
    everything_is_in_order(trace)
    assert trace.skipped == ()
    assert max(Counter(round_.number for round_ in trace.rounds).values()) == 1
    assert all(round_.number < stats.version for round_ in trace.rounds)
    recorded = {(rank.rank, step.number, step.version) for rank in trace.ranks.values() for step in rank.steps}
    given = [given for round_ in trace.rounds for given in round_.contributions]
    assert len(given) == len(set(given))
    assert recorded.issuperset(given)
    assert {step.samples for step in trace.ranks[0].steps} == {4.0}
    assert [pause.name for pause in trace.ranks[2].pauses] == ["synchronize", "finish"]


def test_with_a_full_quorum_every_round_has_everybody(tmp_path):
    outpace.spawn(recording_ranks.with_log_dir, 2, (str(tmp_path), "allreduce", STEPS, -1, 0.0))
    rounds = read_trace(tmp_path).rounds
    assert [round_.number for round_ in rounds] == list(range(STEPS))
    for round_ in rounds:
        assert round_.contributions == ((0, round_.number + 1, round_.number), (1, round_.number + 1, round_.number))


@pytest.mark.parametrize(("record_first", "microbatches"), [(True, 1), (False, 2)])
def test_ddp_is_recorded_with_one_line(tmp_path, record_first, microbatches):
    arguments = (str(tmp_path), STEPS, 1, 0.03, record_first, microbatches)
    left_behind = outpace.spawn(recording_ranks.with_ddp, 2, arguments, LOOPBACK)
    assert left_behind == [0, 0]
    trace = read_trace(tmp_path)
    assert (trace.world, trace.strategy, trace.payload_bytes, trace.skipped) == (2, "ddp", 900, ())
    everything_is_in_order(trace)
    assert nobody_went_ahead_of_anybody(trace)
    assert min(step.compute_s for step in trace.ranks[1].steps) >= 0.03 * microbatches


def test_a_rank_that_simply_ends_has_written_everything(tmp_path):
    outpace.spawn(recording_ranks.never_closed, 2, (str(tmp_path), STEPS))
    trace = read_trace(tmp_path)
    assert [len(rank.steps) for rank in trace.ranks.values()] == [STEPS, STEPS]
    for file in tmp_path.glob("rank-*"):
        assert '"finished"' in file.read_text().splitlines()[-1]


SCRIPT = """
import multiprocessing, os, sys, torch, outpace

def train(rank):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    outpace.record(optimizer, sys.argv[1])
    for _ in range(5):
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step()
    return optimizer

child = multiprocessing.get_context("fork").Process(target=train, args=(1,))
child.start()
child.join()
kept = train(0)
raise KeyError("the script's own mistake")
"""


def test_what_is_queued_at_the_end_of_a_process_is_written(tmp_path):
    run = subprocess.run([sys.executable, "-c", SCRIPT, tmp_path], capture_output=True, text=True, timeout=120)
    assert run.stderr.splitlines()[-1] == """KeyError: "the script's own mistake\""""
    trace = read_trace(tmp_path)
    assert [len(rank.steps) for rank in trace.ranks.values()] == [5, 5]
    assert trace.skipped == ()


def test_a_forked_child_writes_nothing(tmp_path):
    (written,) = outpace.spawn(recording_ranks.forks, 1, (str(tmp_path),))
    kinds = [next(iter(json.loads(line))) for line in written.splitlines()]
    assert kinds == ["outpace", "step", "step", "finished"]


def test_a_rank_without_a_place_to_write_says_so_before_anything_is_trained(tmp_path):
    with pytest.raises(RankFailed, match=r"rank 1 raised: OutpaceError: cannot record to .*rank-00001.jsonl: Is a dir"):
        outpace.spawn(recording_ranks.one_has_no_place, 2, (str(tmp_path),))


def test_simulated_ranks_record_nothing(tmp_path):
    arguments = (str(tmp_path), "eager-solo", 3, -1, 0.0)
    simulate(recording_ranks.with_log_dir, 3, arguments)
    assert not list(tmp_path.iterdir())


def test_a_recorded_run_can_be_drawn(tmp_path):
    outpace.spawn(recording_ranks.with_log_dir, 2, (str(tmp_path), "eager-solo", STEPS, 1, 0.01))
    trace = read_trace(tmp_path)
    drawn = to_chrome(trace)["traceEvents"]
    computing = [event for event in drawn if event["name"] == "computing"]
    assert len(computing) == 2 * STEPS
    starts, ends = ([e["id"] for e in drawn if e["ph"] == phase] for phase in "sf")
    assert starts == ends == list(range(1, len(starts) + 1))


# -- record() by itself ------------------------------------------------------------------------------------------------


def plain_step(weight, optimizer):
    optimizer.zero_grad()
    weight.sum().backward()
    optimizer.step()


def test_gradients_that_a_loop_sets_by_itself_are_ready_when_it_steps(tmp_path):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with outpace.record(optimizer, tmp_path, payload_bytes=7):
        plain_step(weight, optimizer)
        weight.grad = torch.ones(3)
        optimizer.step()
    trace = read_trace(tmp_path)
    assert trace.payload_bytes == 7
    first, second = trace.ranks[0].steps
    assert first.end_ns == second.begin_ns <= second.ready_ns
    assert second.waited_s == 0


def test_frozen_parameters_are_no_payload(tmp_path):
    weight, frozen = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(5), requires_grad=False)
    optimizer = torch.optim.SGD([weight, frozen], lr=0.1)
    with outpace.record(optimizer, tmp_path):
        plain_step(weight, optimizer)
    assert read_trace(tmp_path).payload_bytes == 12


def test_a_closed_recording_leaves_the_optimizer_as_it_was(tmp_path):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    outpace.record(optimizer, tmp_path).close()
    plain_step(weight, optimizer)
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert not weight._post_accumulate_grad_hooks


def test_recording_changes_no_weight(tmp_path):
    results = []
    for recorded in (True, False):
        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.AdamW([weight], lr=0.1)
        recording = outpace.record(optimizer, tmp_path) if recorded else None
        for _ in range(5):
            plain_step(weight, optimizer)
        if recording is not None:
            recording.close()
        results.append(weight.tolist())
    assert results[0] == results[1]


def test_what_cannot_be_recorded_is_refused(tmp_path):
    weight = torch.nn.Parameter(torch.ones(3))
    with pytest.raises(OutpaceError, match=r"record\(\) takes a torch.optim.Optimizer, not a Parameter"):
        outpace.record(weight, tmp_path)
    inner = torch.optim.SGD([weight], lr=0.1)
    with outpace.DistributedOptimizer(inner) as optimizer, pytest.raises(OutpaceError, match="records itself"):
        outpace.record(optimizer, tmp_path)
    assert not list(tmp_path.iterdir())


def recorded(inner, directory):
    return outpace.DistributedOptimizer(inner, "eager-solo", log_dir=directory)


def test_an_exception_in_the_loop_ends_the_recording_too(tmp_path):
    weight = torch.nn.Parameter(torch.ones(3))
    inner = torch.optim.SGD([weight], lr=0.1)
    with pytest.raises(ZeroDivisionError), recorded(inner, tmp_path) as optimizer:
        optimizer.step(lambda: 1 / 0)
    assert '"finished"' in (tmp_path / "rank-00000.jsonl").read_text().splitlines()[-1]
