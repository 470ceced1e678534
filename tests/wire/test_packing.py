"""What is sent for sparse sums and for sums of codes: nothing is lost, and it is as short as it is said to be."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outpace.engines.cluster.wire import PAGE, add_packed, addable, dtype_for, numbers_of, packed


def sparse_vector(elements, count, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    vector = torch.zeros(elements, dtype=dtype)
    vector[torch.randperm(elements, generator=generator)[:count]] = torch.randn(count, generator=generator, dtype=dtype)
    return vector


def unpacked(message, like):
    found = [torch.zeros_like(vector) for vector in like]
    add_packed(message, found)
    return found


@given(st.lists(st.tuples(st.integers(1, 200), st.floats(0, 1)), max_size=5), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_vectors_of_any_density_come_back(dtype, shapes, seed):
    vectors = [sparse_vector(n, int(n * share), seed + i, dtype) for i, (n, share) in enumerate(shapes)]
    message = packed(vectors)
    assert all(torch.equal(a, b) for a, b in zip(unpacked(message, vectors), vectors, strict=True))
    dense = sum(vector.numel() * dtype.itemsize for vector in vectors)
    assert message.numel() <= dense + 4 * len(vectors)


def test_places_at_the_ends_of_pages_come_back():
    vector = torch.zeros(2 * PAGE + 5)
    for place in (0, 1, PAGE // 2 - 1, PAGE // 2, PAGE - 1, PAGE, 2 * PAGE - 1, 2 * PAGE, 2 * PAGE + 4):
        vector[place] = place + 1
    assert torch.equal(unpacked(packed([vector]), [vector])[0], vector)


def test_an_entry_costs_six_bytes_and_a_page_four():
    vectors = [sparse_vector(131_072, 1300, seed) for seed in range(3)]
    assert packed(vectors).numel() == 3 * 1300 * 6 + 3 * 2 * 4
    assert packed([]).numel() == 0


def test_nan_and_infinities_are_entries():
    vector = torch.zeros(100)
    vector[3], vector[50] = math.nan, -math.inf
    (found,) = unpacked(packed([vector]), [vector])
    assert found[3].isnan()
    assert found[50] == -math.inf
    assert found.isfinite().sum() == 98


def test_it_is_added_to_what_is_there():
    vector, there = sparse_vector(1000, 30), torch.ones(1000)
    add_packed(packed([vector]), [there])
    assert torch.equal(there, vector + 1)


@pytest.mark.parametrize(
    ("most", "dtype"),
    [(127, torch.int8), (128, torch.int16), (32_767, torch.int16), (32_768, torch.int32), (2**31 - 1, torch.int32)],
)
def test_numbers_are_no_wider_than_they_must_be(most, dtype):
    assert dtype_for(most) == dtype


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32])
@pytest.mark.parametrize("elements", [1, 2, 7, 1000])
@given(hosts=st.integers(1, 9), seed=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_sums_of_what_is_sent_are_the_sums_up_to_the_largest_numbers(dtype, elements, hosts, seed):
    most = torch.iinfo(dtype).max // hosts
    generator = torch.Generator().manual_seed(seed)
    numbers = [torch.randint(-most, most + 1, (elements,), dtype=dtype, generator=generator) for _ in range(hosts)]
    extremes = torch.tensor([-most, most], dtype=dtype).repeat(elements)[:elements]
    for each in numbers[1:]:
        each[::3] = extremes[::3]
    sent = [addable(each) for each in numbers]
    assert sent[0].nbytes <= 4 * ((elements * dtype.itemsize + 3) // 4)
    added, found = torch.stack(sent).sum(0, dtype=sent[0].dtype), torch.empty_like(numbers[0])
    numbers_of(added, found)
    if added.dtype == dtype:
        found = added
    assert torch.equal(found.to(torch.int64), torch.stack(numbers).to(torch.int64).sum(0))
