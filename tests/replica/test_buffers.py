"""Buffers of every kind: nothing is mixed up or harmed, whatever they do while the ranks train."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import outpace
from outpace import DistributedOptimizer
from outpace.engines.virtual.memory import TensorMemory
from outpace.errors import InvalidRules, OutpaceError
from outpace.interface import Contents
from outpace.replica.replica import OptimizerReplica

#: What a buffer is at first, by a number that tells ranks apart.
KINDS: dict[str, Callable[[float], Tensor]] = {
    "running_mean": lambda n: torch.full((3,), n),
    "running_var": lambda n: torch.full((3,), n, dtype=torch.float16),
    "num_batches_tracked": lambda n: torch.tensor(int(n)),
    "queue": lambda n: torch.full((2, 4), n),
    "pointer": lambda n: torch.tensor([int(n)]),
    "mask": lambda n: torch.tensor([n % 2 > 0, True]),
    "phases": lambda n: torch.full((2,), n, dtype=torch.complex64),
    "images": lambda n: torch.full((1, 2, 3, 3), n).contiguous(memory_format=torch.channels_last),
    "nothing": lambda n: torch.zeros(0),
    "sparse": lambda n: torch.eye(2).mul(n + 1).to_sparse(),
    "expanded": lambda n: torch.full((1,), n).expand(5),
    "cache": lambda n: torch.full((2,), n),  # no part of the state_dict
}
OWN = ("sparse", "expanded", "cache")
#: What a step does to one, by the rank's number.
CHANGES: dict[str, Callable[[Tensor, int], Tensor | None]] = {
    "stays": lambda buffer, n: buffer,
    "is written": lambda buffer, n: buffer if buffer.is_sparse or 0 in buffer.stride() else buffer.fill_(n),
    "is another": lambda buffer, n: torch.full_like(buffer, n) if not buffer.is_sparse else buffer * 2,
    "grows": lambda buffer, n: torch.zeros(9 + n, 2),
    "grows on one rank": lambda buffer, n: torch.ones(7) if n == 1 else buffer,
    "is of another type": lambda buffer, n: torch.ones(3, dtype=torch.float64),
    "vanishes": lambda buffer, n: None,
}
CHANGING_SHAPE = ("grows", "grows on one rank", "is of another type", "vanishes")
PLANS = st.dictionaries(st.sampled_from(list(KINDS)), st.sampled_from(list(CHANGES)), max_size=6)


class Model(nn.Module):
    def __init__(self, kinds: list[str], rank: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        for kind in kinds:
            self.register_buffer(kind, KINDS[kind](rank), persistent=kind != "cache")

    def now(self) -> dict[str, Tensor | None]:
        return {name: None if b is None else b.clone() for name, b in self._buffers.items()}


def live(plan: dict[str, str], steps: int) -> tuple[dict, dict, dict]:
    """The buffers at the start, before a meeting, and after it. A rank that lags adopts a snapshot meanwhile."""
    rank = int(os.environ["RANK"])
    model = Model(list(plan), rank + 1.0)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = DistributedOptimizer(inner, "eager-solo:max_staleness=1", model)
    start = model.now()
    for kind, change in plan.items():
        setattr(model, kind, CHANGES[change](getattr(model, kind), rank))
    before = model.now()
    for _ in range(steps if rank else 2):
        model.weight.grad = torch.ones(2)
        optimizer.step()
    assert same(model.now(), before), "a step has changed a buffer"
    optimizer.synchronize()
    after = model.now()
    optimizer.finish()
    assert same(model.now(), after)
    return start, before, after


def same(one: dict[str, Tensor | None], other: dict[str, Tensor | None]) -> bool:
    return all(
        (a is None and b is None)
        or (a is not None and b is not None and a.layout == b.layout and torch.equal(a.to_dense(), b.to_dense()))
        for a, b in zip(one.values(), other.values(), strict=True)
    )


def expected(kind: str, seen: list[Tensor]) -> Tensor:
    if kind.startswith("running"):
        return (sum(b.double() for b in seen) / len(seen)).to(seen[0].dtype)
    return torch.stack(seen).amax(0) if kind == "num_batches_tracked" else seen[0]


@settings(max_examples=30, deadline=None)
@given(PLANS)
def test_a_meeting_ends_with_equal_buffers_and_leaves_alone_what_cannot_be_shared(plan):
    found = outpace.simulate(live, ranks=3, args=(plan, 12), imbalance="slow:factor=9").results
    for kind, change in plan.items():
        start, before, after = ([rank[i][kind] for rank in found] for i in range(3))
        if kind not in ("sparse", "expanded"):
            assert all(torch.equal(b, start[0]) for b in start), "all begin with rank 0's"
        is_own = kind in OWN or change in CHANGING_SHAPE
        for mine, was in zip(after, before, strict=True):
            assert same({kind: mine}, {kind: was if is_own else expected(kind, before)}), (kind, change)


def in_real_memory(steps: int) -> list[list[float]]:
    """A cache that grows with every step, between two running means, where a rank leaves its rows in an arena."""
    rank = int(os.environ["RANK"])
    model = nn.Sequential(nn.BatchNorm1d(2), Model(["queue", "mask"], rank), nn.BatchNorm1d(2))
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = DistributedOptimizer(inner, "allreduce", model, timeout_s=60.0)
    for step in range(1, steps + 1):
        model[1].queue = torch.full((2, 4 + 1000 * step), 7.0 + rank)
        for norm in (model[0], model[2]):
            norm.running_mean.fill_(rank + step)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    optimizer.synchronize()
    optimizer.finish()
    means = [norm.running_mean.tolist() for norm in (model[0], model[2])]
    return [*means, [model[1].queue.unique().item(), float(model[1].queue.shape[1])]]


def test_buffers_that_grow_do_not_run_into_others_in_shared_memory():
    results = outpace.spawn(in_real_memory, 3, (20,))
    for rank, found in enumerate(results):
        assert found == [[21.0, 21.0], [21.0, 21.0], [7.0 + rank, 20004.0]]


def test_a_script_can_say_what_becomes_of_a_buffer_and_is_told_what_cannot_be():
    def train(rules: dict[str, str]) -> list[list[float]]:
        model = Model(["queue", "pointer", "cache"], 0.0)
        with DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), "allreduce", model, buffers=rules):
            for buffer in model.buffers():
                buffer.fill_(2 * int(os.environ["RANK"]))
        return [b.flatten()[0].item() for b in model.buffers()]

    rules = {"que*": "mean", "pointer": "max", "cache": "first", "*": "own"}
    assert outpace.simulate(train, ranks=3, args=(rules,)).results == ([2.0, 4, 0.0],) * 3
    assert outpace.simulate(train, ranks=3, args=({"*": "own"},)).results == tuple([2.0 * r] * 3 for r in range(3))
    model = Model(["queue", "pointer", "sparse"], 0.0)
    for wrong, message in (
        ({"que": "own"}, "'que' matches no buffer of the model; it has queue, pointer, sparse"),
        ({"queue": "median"}, "choose one of mean, max, first, own"),
        ({"pointer": "mean"}, "pointer has dtype torch.int64, which has no mean"),
        ({"sparse": "first"}, "sparse is sparse, .* so it cannot be shared"),
    ):
        with pytest.raises(InvalidRules, match=message):
            DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), "allreduce", model, buffers=wrong)


def test_an_adopt_that_fails_leaves_a_replica_that_is_marked_as_torn():
    model = Model(["queue"], 0.0)
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), "eager-solo", model)
    contents = optimizer._replica.capture()
    contents.tensors[0] = torch.ones(5)
    with pytest.raises(RuntimeError, match="size"):
        optimizer._replica.adopt(contents, 3, is_beginning=True)
    with pytest.raises(OutpaceError, match="its weights are half updated"):
        optimizer.step()


def test_what_is_beside_the_trained_parameters_is_taken_over_only_where_a_rank_begins():
    writer, reader = (
        OptimizerReplica(torch.optim.SGD(m.parameters(), lr=0.1), m) for m in (with_queue(1.0), with_queue(2.0))
    )
    reader.adopt(writer.capture(), 5, is_beginning=False)
    assert reader.model_buffers.tensors()["queue"].unique() == 2.0
    reader.adopt(writer.capture(), 5, is_beginning=True)
    assert reader.model_buffers.tensors()["queue"].unique() == 1.0


def with_queue(number: float) -> Model:
    return Model(["queue"], number)


def lag(rank_steps: int) -> list[float]:
    model = torch.nn.Linear(2, 2)
    model.weight.requires_grad_(False)
    inner = torch.optim.SGD([model.bias], lr=0.1)
    optimizer = DistributedOptimizer(inner, "eager-solo:max_staleness=3", model)
    for _ in range(rank_steps):
        model.bias.grad = torch.ones(2)
        optimizer.step()
    optimizer.finish()
    return model.weight.flatten().tolist()


def test_what_is_not_trained_is_written_once_however_long_a_rank_lags(monkeypatch):
    saved, save = [], TensorMemory.save

    async def watched(memory: TensorMemory, buffer: int, contents: Contents, *rest: object) -> None:
        saved.append(list(contents.base))
        await save(memory, buffer, contents, *rest)

    monkeypatch.setattr(TensorMemory, "save", watched)
    results = outpace.simulate(lag, ranks=3, args=(30,), imbalance="slow:factor=12").results
    assert results == (results[0],) * 3
    assert saved[0] == ["weight"]
    assert len(saved) > 10
    assert not any(saved[1:])
