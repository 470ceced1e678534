"""What a user of DistributedOptimizer relies on, in real processes."""

import math
import os
import signal

import pytest

import outpace
from outpace.engines.arena.arena import NAMES
from tests.support import features, numbers_of_a_step


def same(values):
    assert len(set(values)) == 1
    return values[0]


def test_full_quorum_equals_ddp_to_float_rounding():
    differences = outpace.spawn(numbers_of_a_step.against_ddp, 4, (50,))
    assert max(apart for apart, _ in differences) < 1e-5
    assert min(moved for _, moved in differences) > 0.1, "nothing was trained"


def test_a_world_of_one_takes_the_steps_of_the_plain_optimizer():
    assert outpace.spawn(numbers_of_a_step.alone_against_plain, 1, (30,)) == [True]


@pytest.mark.parametrize("strategy", ["allreduce", "eager-solo", "eager-majority"])
def test_uneven_numbers_of_batches_end_with_equal_weights_and_no_hang(strategy):
    results = outpace.spawn(features.uneven, 3, (strategy, [100, 10, 0]))
    digest, rounds, contributions = same(results)
    assert digest
    assert contributions == 110
    assert rounds >= 100 if strategy == "allreduce" else rounds > 0


def test_a_restart_from_a_checkpoint_continues_exactly(tmp_path):
    path = str(tmp_path / "checkpoint")
    straight = same(outpace.spawn(features.checkpointed, 2, (20, 20, "")))
    outpace.spawn(features.checkpointed, 2, (20, 0, path))
    assert same(outpace.spawn(features.checkpointed, 2, (0, 20, path))) == straight


def test_pending_work_survives_in_the_checkpoint(tmp_path):
    path = str(tmp_path / "checkpoint")
    saved = outpace.spawn(features.pending_survives, 3, (path, False))
    assert [pending for _, pending in saved] == [0, 0, 1]
    loaded = outpace.spawn(features.pending_survives, 3, (path, True))
    assert same([str(counts) for counts, _ in loaded]) == same([str(counts) for counts, _ in saved])
    assert [sum(row) for row in loaded[0][0]] == pytest.approx([2.0, 2.0, 1.0])


@pytest.mark.parametrize(("dtype", "large"), [("float16", 2048.0), ("bfloat16", 256.0)])
def test_sums_of_half_types_accumulate_in_float32(dtype, large):
    # In the half type itself, large + 1 is large again: seven ones would vanish one by one.
    results = outpace.spawn(numbers_of_a_step.half, 8, (dtype, large, 1))
    expected = -(large + 7) / 8
    assert same(results)[0] == pytest.approx(expected, rel=2**-8)
    assert abs(results[0][0]) > large / 8


def test_parameters_of_several_dtypes_share_one_optimizer():
    assert same([tuple(r) for r in outpace.spawn(numbers_of_a_step.mixed_dtypes, 3)]) == (-2.0, -2.0, -2.0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_contribution_that_is_not_finite_is_refused_and_attributed(value):
    results = outpace.spawn(numbers_of_a_step.poisoned, 3, (value, "allreduce", 5))
    weights = same([tuple(w) for w, _ in results])
    assert weights == pytest.approx((-(4 + 2 / 3),) * 4)
    assert [r.dropped for r in results[0][1].ranks] == [0, 1, 0]


def test_a_round_that_was_refused_whole_keeps_the_last_hyper_parameters():
    assert outpace.spawn(numbers_of_a_step.refused_whole, 2) == [(6.0, [-21.0, -21.0])] * 2


def test_a_sum_that_overflows_makes_the_round_void_for_everybody():
    results = outpace.spawn(numbers_of_a_step.poisoned, 3, (1e38, "allreduce", 5))
    assert same([tuple(w) for w, _ in results]) == (-4.0,) * 4
    assert [r.dropped for r in results[0][1].ranks] == [1, 1, 1]


def test_buffers_are_local_in_training_and_averaged_at_synchronize():
    results = outpace.spawn(numbers_of_a_step.batchnorm, 3, (20,))
    assert len({tuple(before) for before, _, _, _ in results}) == 3
    mean = [sum(column) / 3 for column in zip(*(before for before, _, _, _ in results), strict=True)]
    assert same([tuple(after) for _, after, _, _ in results]) == pytest.approx(mean, rel=1e-6)
    assert same([tracked for _, _, tracked, _ in results]) == 20


@pytest.mark.parametrize("limit", [1.0, 100.0])
def test_max_grad_norm_clips_the_averaged_gradient(limit):
    for ours, torchs in outpace.spawn(numbers_of_a_step.clipped, 3, (limit,)):
        assert ours == pytest.approx(torchs, rel=1e-5)


def test_normalising_by_samples_counts_every_sample_once():
    expected = sum(r * (r + 1) for r in range(3)) / sum(r + 1 for r in range(3))
    assert same(outpace.spawn(numbers_of_a_step.by_samples, 3)) == pytest.approx(expected)


def test_rounds_of_microbatches_contribute_their_mean():
    assert same(outpace.spawn(numbers_of_a_step.microbatched, 2)) == pytest.approx((0.5 + 2.5, 8))


def test_a_parameter_without_any_gradient_is_not_decayed():
    used, unused = same(outpace.spawn(numbers_of_a_step.unused_parameter, 2))
    assert used == pytest.approx(0.95)
    assert unused == 1.0


def test_rounds_use_the_schedule_of_the_rank_that_is_furthest_and_never_go_back():
    fast, slow = outpace.spawn(numbers_of_a_step.schedule_of_the_furthest, 2, (60,))
    assert fast == sorted(fast, reverse=True)
    assert fast[0] == 1.0
    assert min(fast) == pytest.approx(1 / 60)
    assert set(slow) <= set(fast)


def test_two_optimizers_in_one_script_do_not_disturb_each_other():
    first, second = same(outpace.spawn(features.two_optimizers, 3, (20,)))
    assert first != second


def test_a_waiting_rank_uses_under_two_percent_of_a_core():
    used, _ = outpace.spawn(features.cpu_while_waiting, 2, (2.0,))
    assert used < 0.02 * 2.0


def test_nothing_is_left_open_after_finish():
    for during, after in outpace.spawn(features.leftovers, 2):
        assert len(during) == len(NAMES)
        assert after == set()


def test_a_script_that_ends_without_finish_does_not_fail_the_others():
    assert len(outpace.spawn(features.never_finishes, 3, (10, "allreduce"))) == 3


def test_an_exception_in_one_rank_is_what_the_caller_sees():
    with pytest.raises(outpace.RankFailed, match='KeyError: "the user\'s own mistake"') as caught:
        outpace.spawn(features.raises_at, 3, (10, 1, "allreduce"))
    assert caught.value.rank == 1
    assert "features.py" in str(caught.value)


def test_a_rank_that_dies_while_its_children_live_is_seen_as_dead(tmp_path):
    file = tmp_path / "child"
    results = outpace.spawn(features.loader_workers, 3, (20, 1), env={"CHILD_FILE": str(file)})
    os.kill(int(file.read_text()), signal.SIGKILL)
    assert results[1] is None
    assert [r for r in results if r] == [(20, "dead")] * 2


def test_named_files_serve_where_anonymous_ones_do_not_and_are_removed(tmp_path):
    env = {"OUTPACE_ARENA_DIR": str(tmp_path)}
    same(outpace.spawn(features.random_sleeps, 3, (30, "eager-solo"), env=env))
    assert list(tmp_path.iterdir()) == []


def test_names_of_parameters_do_not_count_as_hyper_parameters():
    assert same(outpace.spawn(numbers_of_a_step.many_names, 3, (20,)))


def test_a_hook_that_writes_gradients_does_not_reach_the_other_ranks():
    assert same([tuple(w) for w in outpace.spawn(numbers_of_a_step.hook_that_writes, 3, (4,))]) == (-2.0,)


def test_a_script_that_simply_ends_leaves_its_buffers():
    assert outpace.spawn(features.leaves_with_buffers, 2)[0] == [1.0, 1.0]


def test_what_an_optimizer_counts_in_its_groups_is_kept():
    for counted, rounds in outpace.spawn(numbers_of_a_step.group_state, 2, (5,)):
        assert counted == rounds == 5


def test_a_snapshot_whose_writers_were_lost_is_written_by_whoever_waits():
    reports = outpace.spawn(features.lost_snapshot_writers, 3, (30,))
    assert len({report.final for report in reports}) == 1
    assert 0 not in reports[2].digests, "the last rank was not behind what is kept"


def test_a_checkpoint_loaded_in_a_running_job_is_not_stepped_on(tmp_path):
    assert outpace.spawn(features.rolled_back, 2, (str(tmp_path / "ready"),)) == [100.0, 100.0]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_types_get_the_same_bits_with_any_number_of_threads(dtype):
    found = outpace.spawn(numbers_of_a_step.other_threads, 3, (dtype, 5))
    same([tuple(digests) for digests, _ in found])
    assert [threads for _, threads in found] == [1, 3, 5]
