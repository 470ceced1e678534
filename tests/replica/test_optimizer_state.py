"""What an optimizer keeps, and how another rank comes to have the very same of it."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from outpace import DistributedOptimizer
from outpace.errors import OutpaceError
from outpace.interface import Contents, Work
from outpace.replica.replica import OptimizerReplica
from outpace.replica.staging import HostStaging
from outpace.replica.state import Unpacking, pack
from outpace.strategies import strategy

OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
    "fused adamw": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "fused sgd": lambda p: torch.optim.SGD(p, lr=1e-4, momentum=0.9, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.5, centered=True),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.1),
}


def conv(memory_format: torch.memory_format = torch.channels_last) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 2)).to(memory_format=memory_format)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    x = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(seed))
    optimizer.zero_grad()
    model(x.contiguous(memory_format=torch.channels_last)).square().sum().backward()
    optimizer.step()


def stored(contents: Contents) -> Contents:
    """As it comes out of shared memory: contiguous, in one piece, its plain part written and read."""
    return Contents([t.clone(memory_format=torch.contiguous_format) for t in contents.tensors],
                    json.loads(json.dumps(contents.plain)))  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("steps_before", [0, 2])
def test_a_rank_that_adopts_goes_on_bit_for_bit_also_with_weights_that_are_not_contiguous(name, steps_before):
    writer, reader = conv(), conv()
    inners = [OPTIMIZERS[name](model.parameters()) for model in (writer, reader)]
    replicas = [OptimizerReplica(inner, model) for inner, model in zip(inners, (writer, reader), strict=True)]
    for seed in range(3):
        step(writer, inners[0], seed)
    for seed in range(steps_before):
        step(reader, inners[1], 90 + seed)
    replicas[1].adopt(stored(replicas[0].capture()), 3, is_beginning=True)
    for mine, theirs in zip(reader.parameters(), writer.parameters(), strict=True):
        for key, value in inners[0].state[theirs].items():
            if isinstance(value, Tensor):
                assert inners[1].state[mine][key].stride() == value.stride(), key
    for seed in range(10, 13):
        for model, inner in zip((writer, reader), inners, strict=True):
            step(model, inner, seed)
        assert all(map(torch.equal, writer.parameters(), reader.parameters()))


TENSORS = st.builds(
    lambda shape, dtype, turned: torch.randn(shape).to(dtype).mT if turned else torch.randn(shape).to(dtype),
    st.sampled_from([(2, 3), (0, 4), (1, 1), (2, 2, 2)]),
    st.sampled_from([torch.float32, torch.int64, torch.bfloat16, torch.bool]),
    st.booleans(),
)
PLAIN = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text())
KEPT = st.recursive(
    TENSORS | PLAIN | st.just(torch.zeros(1).expand(3)),
    lambda inside: (
        st.lists(inside, max_size=3)
        | st.lists(inside, max_size=3).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inside, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(KEPT, KEPT | st.none())
def test_lists_and_dicts_of_tensors_and_numbers_come_back_as_they_were(value, before):
    parameter, tensors = nn.Parameter(torch.zeros(2, 3)), []
    entry = json.loads(json.dumps(pack(value, tensors, parameter)))
    copied = [t.clone(memory_format=torch.contiguous_format) for t in tensors]
    for there_before in (before, copy.deepcopy(value), None):
        unpacking = Unpacking(copied)
        found = unpacking.value(entry, parameter, there_before)
        HostStaging().put(unpacking.copies)
        assert is_same(found, value)
        assert not any(is_inside(t, copied) for t in leaves(found) if isinstance(t, Tensor) and t.numel())


def is_same(one: Any, other: Any) -> bool:
    if isinstance(other, Tensor):
        has_strides = 0 in other.stride() or other.numel() == 0 or one.stride() == other.stride()
        return has_strides and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(other, dict):
        return list(one) == list(other) and all(is_same(one[key], other[key]) for key in other)
    if isinstance(other, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(is_same, one, other))
    return type(one) is type(other) and one == other


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, (list, tuple)) else [value]


def is_inside(tensor: Tensor, copied: list[Tensor]) -> bool:
    return any(tensor.data_ptr() == other.data_ptr() for other in copied)


class Keeping(torch.optim.SGD):
    """Keeps something in its state from its first step on."""

    kept: Any = None

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["kept"] = self.kept
        self.state["history"] = self.kept


@pytest.mark.parametrize("choice", ["eager-solo", "local-sgd", "d-psgd"])
def test_an_optimizer_whose_state_cannot_be_shared_is_refused_at_its_first_step(choice):
    weight = nn.Parameter(torch.ones(2))
    inner = Keeping([weight], lr=0.1)
    inner.kept = [torch.ones(1), {"generator": torch.Generator()}]
    optimizer = DistributedOptimizer(inner, choice)
    weight.grad = torch.ones(2)
    with pytest.raises(OutpaceError, match=r"Keeping keeps 'kept' in its state, which contains Generator: that cannot"):
        optimizer.step()


def test_what_an_optimizer_keeps_in_lists_and_beside_its_parameters_is_shared():
    weights = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    inners = [Keeping([weight], lr=0.1) for weight in weights]
    inners[0].kept = {"factors": [torch.eye(2), torch.arange(3)], "count": 4}
    replicas = [OptimizerReplica(inner, None) for inner in inners]
    weights[0].grad = torch.ones(2)
    replicas[0].local_step(Work())
    replicas[1].adopt(stored(replicas[0].capture()), 1, is_beginning=False)
    assert is_same(inners[1].state[weights[1]]["kept"], inners[0].kept)
    assert is_same(inners[1].state["history"], inners[0].kept)


@pytest.mark.parametrize("max_grad_norm", [None, 1.0])
@pytest.mark.parametrize(
    ("dtype", "value"), [(torch.float16, 60_000.0), (torch.float32, 3e38), (torch.bfloat16, 3e38), (torch.float32, 2.0)]
)
def test_a_finite_gradient_is_never_refused_whatever_its_norm_is(dtype, value, max_grad_norm):
    weights = [nn.Parameter(torch.zeros(4, dtype=dtype)), nn.Parameter(torch.zeros(1, dtype=torch.float32))]
    replica = strategy("local-sgd").replica(torch.optim.SGD(weights, lr=2.0**-14 if value > 3 else 1.0), None)
    replica.max_grad_norm = max_grad_norm
    weights[0].grad = torch.full((4,), value, dtype=dtype)
    replica.local_step(Work())
    assert replica.refused == 0
    moved = -weights[0].detach().double() / replica.inner.param_groups[0]["lr"]
    assert moved.tolist() == pytest.approx([0.5 if max_grad_norm else value] * 4, rel=1e-2)
    for bad in (torch.inf, torch.nan):
        weights[0].grad = torch.tensor([value, bad, 0.0, 0.0], dtype=dtype)
        replica.local_step(Work())
    assert replica.refused == 2
