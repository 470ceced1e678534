"""The shared samplers as one rank sees them: orders, epochs, checkpoints, and what is said about mistakes."""

from __future__ import annotations

import logging
import re
from collections import Counter

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

import outpace
from outpace.data import SharedBatchSampler, SharedSampler, SharedStream, SpeedShares
from outpace.errors import InvalidRules, OutpaceError

DATA = TensorDataset(torch.arange(50))


@pytest.fixture
def optimizer():
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.ones(1)
    made = outpace.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), "eager-solo")
    yield made
    made.finish()


def test_the_order_is_that_of_distributed_sampler_with_the_same_seed(optimizer):
    theirs, ours = DistributedSampler(DATA, 1, 0, seed=3), SharedSampler(DATA, 8, seed=3)
    for epoch in (0, 4):
        theirs.set_epoch(epoch)
        ours.set_epoch(epoch)
        assert list(ours) == list(theirs)


def test_batches_are_cut_from_that_order_and_the_last_may_be_left_out(optimizer):
    samples, batches = list(SharedSampler(DATA, 8)), SharedBatchSampler(DATA, 8)
    assert [sample for batch in batches for sample in batch] == samples
    whole = SharedBatchSampler(DATA, 8, drop_last=True)
    assert [len(batch) for batch in whole] == [8] * 6
    assert len(list(SharedSampler(DATA, 8, drop_last=True))) == 48
    assert list(SharedSampler(50, 8, shuffle=False)) == list(range(50))


def test_without_set_epoch_every_loop_is_another_epoch(optimizer):
    sampler = SharedSampler(DATA, 8)
    first, second = list(sampler), list(sampler)
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    assert sampler.epoch == 1


def test_a_loop_that_was_broken_off_is_gone_on_with(optimizer):
    loader = DataLoader(DATA, batch_sampler=(sampler := SharedBatchSampler(DATA, 8)))
    seen = Counter[int]()
    for (x,) in loader:
        seen.update(x.tolist())
        optimizer.step()
        if seen.total() == 24:
            break
    for (x,) in loader:
        seen.update(x.tolist())
        optimizer.step()
    assert sampler.epoch == 0
    assert seen == Counter(range(50))


def test_what_was_prefetched_and_not_trained_is_drawn_again_after_a_break(optimizer):
    options = {"num_workers": 2, "multiprocessing_context": "fork"}
    loader = DataLoader(DATA, batch_sampler=SharedBatchSampler(DATA, 4), **options)
    seen = Counter[int]()
    for (x,) in loader:
        seen.update(x.tolist())
        optimizer.step()
        if seen.total() == 12:
            break
    for (x,) in loader:
        seen.update(x.tolist())
        optimizer.step()
    assert seen == Counter(range(50))


def test_weights_draw_with_replacement(optimizer):
    sampler = SharedSampler(4, 10, weights=[0, 1, 0, 3], length=4000)
    found = Counter(sampler)
    assert set(found) == {1, 3}
    assert 2800 < found[3] < 3200


def test_micro_batches_are_counted_and_what_was_not_stepped_is_not_covered(optimizer):
    loader = DataLoader(DATA, batch_sampler=SharedBatchSampler(DATA, 4))
    hand = optimizer._engine.ledger.pool.hands
    for number, round_ in enumerate(optimizer.rounds(loader, microbatches=3), 1):
        for _ in round_:
            assert hand[0].covered == 3 * (number - 1)
        optimizer._replica.parameters[0].grad = torch.ones(1)
        optimizer.step()
        assert hand[0].covered == min(3 * number, 13)


def test_a_checkpoint_goes_on_in_the_middle_of_an_epoch():
    def run(state: dict | None, batches: int) -> tuple[list[int], dict]:
        weight = torch.nn.Parameter(torch.zeros(1))
        weight.grad = torch.ones(1)
        seen: list[int] = []
        with outpace.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), "eager-solo") as optimizer:
            sampler = SharedBatchSampler(DATA, 8)
            if state is not None:
                sampler.load_state_dict(state)
            for number, (x,) in enumerate(DataLoader(DATA, batch_sampler=sampler), 1):
                seen += x.tolist()
                optimizer.step()
                if number == batches:
                    optimizer.synchronize()
                    break
            return seen, sampler.state_dict()

    first, state = run(None, 3)
    assert state["left"] == {0: [(3, 7)]}
    second, state = run(state, 2)
    third, _ = run(state, 99)
    assert sorted(first + second + third) == list(range(50))


# -- mistakes ---------------------------------------------------------------------------------------------------------


def test_what_one_rank_alone_has_saved_of_the_training_state_is_refused_with_what_to_do(optimizer):
    state = outpace.TrainingState(torch.nn.Linear(1, 1), optimizer)
    with pytest.raises(outpace.OutpaceError, match=r"nothing of rank 0: .* with torch.distributed.checkpoint on all"):
        state.load_state_dict({"model": {}, "optimizer": {}, "rank 1": b""})


def test_without_an_optimizer_it_says_what_is_missing_and_why_ddp_will_not_do():
    with pytest.raises(OutpaceError, match=r"an open DistributedOptimizer.*DDP keep torch's DistributedSampler"):
        list(SharedSampler(DATA, 8))


def test_an_epoch_that_was_drawn_to_its_end_is_not_silently_empty(optimizer):
    sampler = SharedSampler(DATA, 8)
    sampler.set_epoch(0)
    assert len(list(sampler)) == 50
    sampler.set_epoch(0)
    with pytest.raises(InvalidRules, match=r"set_epoch\(0\).*drawn epoch 0 to its end.*grows"):
        list(sampler)


def test_two_samplers_at_once_are_refused(optimizer):
    loaders = [DataLoader(DATA, batch_sampler=SharedBatchSampler(DATA, 8)) for _ in range(2)]
    with pytest.raises(OutpaceError, match=r"another SharedSampler was begun.*ConcatDataset"):
        list(zip(*loaders, strict=True))


def test_a_sampler_inside_a_worker_is_refused(optimizer):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(SharedSampler(DATA, 8, optimizer=optimizer))

    with pytest.raises(OutpaceError, match="iterated in a worker of a DataLoader"):
        list(DataLoader(Stream(), num_workers=1, multiprocessing_context="fork"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda: SharedSampler(DATA, 0), "batch_size=0"),
        (lambda: SharedSampler(0, 8), "a set of 0 samples"),
        (lambda: SharedSampler(iter(()), 8), "no length.*SharedStream"),
        (lambda: SharedSampler(5, 8, drop_last=True), "5 samples make no batch of 8"),
        (lambda: SharedSampler(5, 1, weights=[1, 2]), r"\[2\] weights for 5 samples"),
        (lambda: SharedSampler(2, 1, weights=[0, 0]), "not all 0"),
        (lambda: SharedSampler(5, 1, length=3), "without weights"),
        (lambda: SharedSampler(5, 1, seed=0.5), "seed=0.5"),
        (lambda: SharedSampler(5, 1, batches_per_step=0), "batches_per_step=0"),
        (lambda: SharedSampler(5, 1).set_epoch(-1), r"set_epoch\(-1\)"),
        (lambda: SharedSampler(5, 1).load_state_dict(SharedSampler(6, 1).state_dict()), "other data: 6 samples"),
    ],
)
def test_what_cannot_work_is_refused_by_name(given, said):
    with pytest.raises(InvalidRules, match=said):
        given()


def test_fewer_batches_than_ranks_are_warned_of(optimizer, caplog):
    with caplog.at_level(logging.WARNING, "outpace"):
        list(SharedSampler(DATA, 8))
    assert not caplog.messages
    optimizer._engine.world = 8
    with caplog.at_level(logging.WARNING, "outpace"):
        list(SharedSampler(DATA, 8))
    optimizer._engine.world = 1
    assert caplog.messages == [
        "an epoch has fewer batches (7) than there are ranks (8): in each epoch, some ranks get nothing to train on. "
        "Make batches smaller, or use fewer ranks"
    ]


@pytest.mark.parametrize(
    ("of_loader", "said"), [(8, ""), (16, "24 items fewer.*trained twice"), (4, "48 items more.*lost")]
)
def test_a_loader_whose_batches_are_not_the_samplers_is_warned_of(of_loader, said, optimizer, caplog):
    sampler = SharedSampler(DATA, 8, drop_last=True)
    loader = DataLoader(DATA, of_loader, sampler=sampler)
    with caplog.at_level(logging.WARNING, "outpace"):
        for _ in range(2):
            for _ in loader:
                optimizer.step()
    assert len(caplog.messages) == bool(said)
    assert all(re.search(said, message) for message in caplog.messages)


def test_whoever_only_looks_at_the_data_is_not_warned(optimizer, caplog):
    sampler = SharedSampler(DATA, 8)
    with caplog.at_level(logging.WARNING, "outpace"):
        for _ in range(3):
            list(sampler)
    assert not caplog.messages


# -- how fast ----------------------------------------------------------------------------------------------------------


def epoch_of(batches: int) -> int:
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = outpace.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), "eager-majority")
    steps = 0
    for _ in SharedBatchSampler(batches * len(optimizer.stats.ranks), 1):
        weight.grad = torch.ones(1)
        optimizer.step()
        steps += 1
    optimizer.finish()
    return steps


@pytest.mark.parametrize("factor", [2, 4])
def test_the_epoch_ends_for_all_ranks_together_however_slow_one_is(factor):
    ranks, batches, each_s = 4, 60, 0.1
    slow = f"slow:k=1,factor={factor}"
    found = outpace.simulate(epoch_of, ranks, (batches,), compute_ms=1e3 * each_s, imbalance=slow, network="zero")
    assert sum(found.results) == ranks * batches
    ideal_s = ranks * batches * each_s / (ranks - 1 + 1 / factor)
    assert found.seconds < 1.02 * ideal_s


def draws_of(batches: int) -> tuple[int, int]:
    """Batches, and how often was drawn for them."""
    weight = torch.nn.Parameter(torch.zeros(1))
    with outpace.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), "eager-majority") as optimizer:
        count = len(list(SharedBatchSampler(batches, 1)))
        return count, optimizer._engine.ledger.pool.hands[optimizer._engine.rank].draws


def test_steps_that_take_no_time_draw_many_batches_at_once():
    found = outpace.simulate(draws_of, 2, (4000,), network="zero")
    assert sum(batches for batches, _ in found.results) == 4000
    assert sum(draws for _, draws in found.results) < 1000


def test_a_loader_that_prefetches_does_not():
    [(batches, draws)] = outpace.simulate(draws_of, 1, (60,), network="zero").results
    assert draws > batches == 60


# -- loops that count rounds ------------------------------------------------------------------------------------------


def uneven(rounds: int) -> tuple[int, int, bool]:
    """Own steps, rounds in all, and whether the learning rate was that of its round all along."""
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = outpace.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), "eager-majority")
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.5, total_iters=rounds)
    scheduler = outpace.RoundScheduler(schedule, optimizer)
    is_right, steps = True, 0
    for step in optimizer.until(rounds=rounds):
        assert step == steps
        weight.grad = torch.ones(1)
        optimizer.step()
        scheduler.step()
        steps += 1
        wanted = 1 - 0.5 * min(1.0, optimizer.stats.version / rounds)
        is_right = is_right and scheduler.get_last_lr() == [pytest.approx(wanted)]
    optimizer.finish()
    return steps, optimizer.stats.version, is_right


def test_loops_end_at_one_round_and_a_schedule_over_rounds_is_the_same_on_all_ranks():
    found = outpace.simulate(uneven, ranks=4, args=(40,), compute_ms=10, imbalance="slow:k=1,factor=4")
    steps, versions, are_right = zip(*found.results, strict=True)
    assert min(steps) < 20 < 38 <= max(steps)
    assert len(set(versions)) == 1
    assert 40 <= versions[0] <= 42
    assert all(are_right)


def shares(epochs: int) -> list[int]:
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = outpace.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), "eager-majority")
    sampler, steps = SpeedShares(400, 2, optimizer=optimizer), []
    for _ in range(epochs):
        made = 0
        for _ in sampler:
            weight.grad = torch.ones(1)
            optimizer.step()
            made += 1
        steps.append(made)
    optimizer.finish()
    return steps


def test_shares_follow_speed_from_the_second_epoch_on():
    found = outpace.simulate(shares, ranks=4, args=(3,), compute_ms=10, imbalance="slow:k=1,factor=4")
    assert [sum(epoch) for epoch in zip(*found.results, strict=True)] == [200] * 3
    slow = min(found.results, key=lambda steps: steps[-1])
    assert slow[0] >= 45
    assert 10 <= slow[2] <= 20


def test_in_simulated_time_a_rank_takes_as_much_as_it_can_compute():
    found = outpace.simulate(drawn, ranks=4, compute_ms=10, imbalance="slow:k=1,factor=4")
    assert sum(found.results) == 100
    assert 6 <= min(found.results) <= 9
    assert found.seconds < 1.1 * 0.01 * 100 / 3.25 + 0.04


def drawn() -> int:
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = outpace.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), "eager-majority:repair=none")
    made = 0
    for _ in SharedBatchSampler(100, 1):
        weight.grad = torch.ones(1)
        optimizer.step()
        made += 1
    optimizer.finish()
    return made


# -- streams ----------------------------------------------------------------------------------------------------------


def read_stream() -> list[tuple[int, int]]:
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = outpace.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), "eager-majority")
    stream = SharedStream(lambda epoch: ((epoch, n) for n in range(50)), 4)
    found = []
    for _ in range(2):
        for batch in DataLoader(stream, batch_size=None):
            found += batch
            weight.grad = torch.ones(1)
            optimizer.step()
    optimizer.finish()
    return [(int(epoch), int(number)) for epoch, number in found]


def test_a_stream_is_read_by_all_and_each_of_its_batches_computed_once():
    found = outpace.simulate(read_stream, ranks=3, compute_ms=10, imbalance="slow:k=1,factor=4")
    together = sorted(sample for rank in found.results for sample in rank)
    assert together == [(epoch, number) for epoch in range(2) for number in range(50)]


def test_a_stream_in_a_worker_is_refused(optimizer):
    stream = SharedStream(lambda epoch: range(10), 4, optimizer=optimizer)
    with pytest.raises(OutpaceError, match="num_workers=0"):
        list(DataLoader(stream, batch_size=None, num_workers=1, multiprocessing_context="fork"))
