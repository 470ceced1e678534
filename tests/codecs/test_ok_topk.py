"""Ok-Topk: every gradient is sent or kept back, exactly, whatever becomes of the contribution."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outpace.codecs.ok_topk import OkTopk
from outpace.errors import InvalidRules, ModelMismatch
from outpace.vector import SUPPORTED, VectorLayout
from tests.support.made_rows import coded_sum, made_rows, plain_sum

SHAPES = [(4, 5), (7,), (), (3, 0)]
DENSITIES = st.sampled_from([0.001, 0.05, 0.1, 0.5, 0.99, 1.0])


def gradients(seed, dtype=torch.float32, whole=False):
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(shape, generator=generator, dtype=torch.float64) * 8 for shape in SHAPES]
    return [(t.round() if whole else t).to(dtype) for t in made]


def deposit(mine, step, tensors, present=None):
    row = [t.clone() for t in tensors]
    mine.deposited(step, row, present if present is not None else bytes([1] * len(row)))
    return row


def kept(mine):
    return [t.clone() for t in mine.residual()]


def same(left, right):
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def result_of(rows_by_rank, density):
    """One chunk for each tensor, as if the tensors were that large."""
    return [
        coded_sum(OkTopk(density), [t.view(-1) for t in tensors]).view(tensors[0].shape)
        if tensors[0].numel()
        else tensors[0]
        for tensors in zip(*rows_by_rank, strict=True)
    ]


@pytest.mark.parametrize("dtype", SUPPORTED)
@given(seed=st.integers(0, 10_000), density=DENSITIES)
@settings(max_examples=25, deadline=None)
def test_residual_plus_gradient_is_sent_plus_residual_exactly(dtype, seed, density):
    mine = OkTopk(density)
    before = [torch.zeros(shape) for shape in SHAPES]
    for step in range(4):
        given_now = gradients(seed + step, dtype)
        row = deposit(mine, step, given_now)
        for old, gradient, sent, residual in zip(before, given_now, row, mine.residual(), strict=True):
            acc = old.to(residual.dtype) + gradient
            assert torch.equal(sent.to(residual.dtype) + residual, acc)
        before = kept(mine)


@given(seed=st.integers(0, 10_000), density=DENSITIES)
@settings(max_examples=40, deadline=None)
def test_no_mass_is_lost_over_rounds_of_ranks_that_are_applied_or_dropped(seed, density):
    """Whole numbers, so that float32 adds them without rounding and every gradient can be told apart."""
    ranks, fate = [OkTopk(density) for _ in range(3)], torch.Generator().manual_seed(seed)
    given_in, taken_out = [torch.zeros(s) for s in SHAPES], [torch.zeros(s) for s in SHAPES]
    for step in range(6):
        all_given = [gradients(seed + 100 * step + rank, whole=True) for rank in range(3)]
        rows = [deposit(mine, step, g) for mine, g in zip(ranks, all_given, strict=True)]
        is_in = (torch.rand(3, generator=fate) < 0.7).tolist()
        chosen = [row for row, chosen in zip(rows, is_in, strict=True) if chosen]
        result = result_of(chosen, density) if chosen else None
        for mine, is_applied in zip(ranks, is_in, strict=True):
            mine.applied(step, result) if is_applied else mine.dropped(step)
        for index in range(len(SHAPES)):
            given_in[index] += sum(g[index] for g in all_given)
            if result is not None:
                taken_out[index] += result[index]
    assert all(mine.in_flight() == [] for mine in ranks)
    for index in range(len(SHAPES)):
        left = sum(mine.residual()[index] for mine in ranks)
        assert torch.equal(given_in[index], taken_out[index] + left)


def test_only_what_was_sent_and_selected_leaves_the_residual():
    mine = OkTopk(0.5)
    row = deposit(mine, 1, [torch.tensor([4.0, 1.0, -3.0, 2.0])])
    assert row[0].tolist() == [4.0, 0.0, -3.0, 0.0]
    assert mine.residual()[0].tolist() == [0.0, 1.0, 0.0, 2.0]
    mine.applied(1, [torch.tensor([0.0, 9.0, -1.5, 0.0])])  # another rank's entry 1 was selected, ours was not sent
    assert mine.residual()[0].tolist() == [4.0, 1.0, 0.0, 2.0]


def test_a_late_contribution_gives_back_under_its_own_step():
    mine = OkTopk(0.5)
    deposit(mine, 1, [torch.tensor([4.0, 1.0])])
    deposit(mine, 2, [torch.tensor([0.0, 4.0])])
    assert mine.in_flight() == [1, 2]
    mine.applied(2, [torch.tensor([0.0, 3.0])])
    assert mine.residual()[0].tolist() == [0.0, 0.0]
    mine.dropped(1)
    assert mine.residual()[0].tolist() == [4.0, 0.0]
    mine.dropped(1)  # nothing more to give back
    mine.applied(7, [torch.tensor([0.0, 0.0])])
    assert mine.residual()[0].tolist() == [4.0, 0.0]


@given(seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_density_one_is_the_dense_sum_and_keeps_nothing_back(seed):
    ranks = [OkTopk(1) for _ in range(3)]
    for step in range(3):
        all_given = [gradients(seed + 10 * step + rank, whole=True) for rank in range(3)]  # some cancel
        rows = [deposit(mine, step, g) for mine, g in zip(ranks, all_given, strict=True)]
        assert all(same(row, g) for row, g in zip(rows, all_given, strict=True))
        result = result_of(rows, 1)
        for found, tensors in zip(result, zip(*all_given, strict=True), strict=True):
            assert torch.equal(found, plain_sum(tensors))
        for mine in ranks:
            mine.applied(step, result)
            assert not any(t.any() for t in mine.residual())


def test_one_rank_is_top_k_with_error_feedback():
    mine, density, elements = OkTopk(0.1), 0.1, 200
    residual = torch.zeros(elements)
    for step in range(20):
        gradient = made_rows(1, elements, seed=step)[0]
        acc = residual + gradient
        update = torch.zeros(elements)
        top = acc.abs().topk(20).indices
        update[top] = acc[top]
        residual = acc - update
        row = deposit(mine, step, [gradient])
        result = coded_sum(OkTopk(density), row)
        mine.applied(step, [result])
        assert torch.equal(result, update)
        assert torch.equal(mine.residual()[0], residual)


@pytest.mark.parametrize("dtype", SUPPORTED)
def test_the_sum_keeps_its_largest_entries_and_no_others(dtype):
    rows, factors = made_rows(4, 1000, dtype=dtype), [1.0, 2.0, 1.0, 3.0]
    dense, found = plain_sum(rows, factors), coded_sum(OkTopk(0.07), rows, factors)
    is_kept = found != 0
    assert torch.equal(found[is_kept], dense[is_kept])
    assert dense[is_kept].abs().min() > dense[~is_kept].abs().max() or is_kept.sum() > 70
    assert is_kept.sum() >= 70


def test_ties_are_all_kept_so_that_no_order_decides():
    row = torch.tensor([1.0, -1.0, 1.0, 0.5])
    assert coded_sum(OkTopk(0.25), [row]).tolist() == [1.0, -1.0, 1.0, 0.0]
    assert deposit(OkTopk(0.25), 0, [row])[0].tolist() == [1.0, -1.0, 1.0, 0.0]


def test_the_share_is_counted_without_rounding_up_an_exact_count():
    row = made_rows(1, 100)[0]
    assert (deposit(OkTopk(0.07), 0, [row])[0] != 0).sum() == 7
    assert (coded_sum(OkTopk(0.07), [row]) != 0).sum() == 7
    assert (coded_sum(OkTopk(0.071), [row]) != 0).sum() == 8


def test_zeros_are_not_remembered_as_sent():
    mine, row = OkTopk(0.5), torch.zeros(1000)
    row[3] = 2.0
    deposit(mine, 1, [row])
    assert mine.state()["sent.1.0.indices"].tolist() == [3]


def test_chunks_of_a_model_are_coded_on_their_own_and_cover_all_of_it():
    tensors = [t for seed in range(3) for t in gradients(seed)]
    layout = VectorLayout.of((f"p{i}", t) for i, t in enumerate(tensors))
    memories = [torch.zeros(layout.nbytes, dtype=torch.uint8) for _ in range(3)]
    ranks, slot = [OkTopk(0.2), OkTopk(0.2)], layout.views(memories[2])
    for rank, mine in enumerate(ranks):
        row = layout.views(memories[rank])
        torch._foreach_copy_(row, tensors)
        mine.deposited(1, row, bytes([1] * len(row)))
    for index, chunk in enumerate(layout.chunks()):
        ends = chunk.offset, chunk.offset + chunk.elements * chunk.dtype.itemsize
        parts = [memory[ends[0] : ends[1]].view(chunk.dtype) for memory in memories]
        ranks[0].reduce(parts[2], parts[:2], [1.0, 1.0], [1, 2], index)
    for mine in ranks:
        mine.applied(1, slot)
        for residual, update, gradient in zip(mine.residual(), slot, tensors, strict=True):
            assert torch.equal(residual + update / 2, gradient)  # both ranks gave the same


def test_a_parameter_without_a_gradient_sends_nothing_and_keeps_its_residual():
    mine = OkTopk(0.5)
    deposit(mine, 1, [torch.tensor([4.0, 1.0]), torch.tensor([2.0, 5.0])])
    row = deposit(mine, 2, [torch.tensor([1.0, 1.0]), torch.zeros(2)], present=b"\1\0")
    assert row[1].tolist() == [0.0, 0.0]
    assert mine.residual()[1].tolist() == [2.0, 0.0]
    mine.applied(2, [torch.tensor([0.0, 2.0]), torch.tensor([7.0, 7.0])])
    assert mine.residual()[1].tolist() == [2.0, 0.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_contribution_that_is_not_finite_is_passed_on_and_spoils_no_residual(bad):
    mine = OkTopk(0.5)
    deposit(mine, 1, [torch.tensor([4.0, 1.0]), torch.tensor([1.0, 2.0])])
    before = kept(mine)
    row = deposit(mine, 2, [torch.tensor([1.0, 1.0]), torch.tensor([bad, 2.0])])
    assert not row[1].isfinite().all()
    mine.dropped(2)
    assert same(mine.residual(), before)


def test_what_does_not_fit_a_half_is_sent_as_far_as_it_fits():
    mine = OkTopk(0.5)
    large = torch.tensor([60_000.0, 1.0], dtype=torch.float16)
    deposit(mine, 1, [large])
    mine.dropped(1)
    row = deposit(mine, 2, [large])
    assert row[0].tolist() == [65_504.0, 0.0]
    assert mine.residual()[0].tolist() == [120_000.0 - 65_504.0, 2.0]


def test_a_residual_saturates_instead_of_becoming_infinite():
    mine, huge = OkTopk(0.5), torch.tensor([3e38, 1.0])
    for step in range(3):
        deposit(mine, step, [huge])
        mine.dropped(step)
    assert deposit(mine, 9, [huge])[0].isfinite().all()
    assert mine.residual()[0].isfinite().all()


def test_state_restores_residual_and_contributions_in_flight():
    mine, other = OkTopk(0.1), OkTopk(0.1)
    for step in (3, 4):
        deposit(mine, step, gradients(step))
    state = mine.state()
    other.load_state(state)
    for each in (mine, other):
        each.dropped(3)
        each.applied(4, [torch.zeros(shape) for shape in SHAPES])
    assert same(mine.residual(), other.residual())
    again = OkTopk(0.1)
    again.load_state(state)  # not changed by what was loaded from it
    assert again.in_flight() == [3, 4]
    again.load_state({})
    assert again.in_flight() == []
    assert again.residual() == []


def test_another_model_and_a_step_that_is_in_flight_are_refused():
    mine = OkTopk(0.1)
    deposit(mine, 1, [torch.ones(3)])
    with pytest.raises(InvalidRules, match="step 1 was contributed before"):
        deposit(mine, 1, [torch.ones(3)])
    with pytest.raises(ModelMismatch, match="shapes"):
        deposit(mine, 2, [torch.ones(4)])
