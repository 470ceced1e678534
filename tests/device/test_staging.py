"""What a step on a device moves and waits for, in which order, and where memory is refused."""

import pytest
import torch

import outpace
from tests.support import on_device
from tests.support.launches import in_one_launch
from tests.support.on_device import CPU, DEVICE

F32, HALF = (torch.float32,), (torch.float32, torch.bfloat16)


@pytest.fixture(scope="module")
def steps_alone():
    cases = {(n, types): (n, types, "eager-majority") for n in (40, 400) for types in (F32, HALF)}
    return in_one_launch(on_device.counted, 1, cases)


@pytest.mark.parametrize("tensors", [40, 400])
@pytest.mark.parametrize("dtypes", [F32, HALF], ids=["float32", "float32 and bfloat16"])
def test_a_step_is_one_copy_down_and_one_up_for_each_dtype_and_one_wait(tensors, dtypes, steps_alone):
    (found,) = steps_alone[tensors, dtypes]
    assert (found["copies_down"], found["copies_up"]) == (len(dtypes), len(dtypes))
    assert found["synchronisations"] == 1
    payload = sum(tensors * 24 * dtype.itemsize for dtype in dtypes)
    for name in ("bytes_down", "bytes_up"):
        assert payload <= found[name] < 1.5 * payload  # each tensor begins at a multiple of 64 bytes


#: the most copies down, copies up and waits of a step with SGD: it looks at gradients, and publishes
USUAL = (1, 1, 2)
AVERAGING = {
    **dict.fromkeys(("local-sgd:every=1", "sgp", "d-psgd", "diloco:every=1"), USUAL),
    **dict.fromkeys(("wagma", "ad-psgd"), (5, 5, 6)),  # what the other rank does meanwhile is taken over, too
}
FEW, MANY = 5, 40


@pytest.fixture(scope="module")
def steps_that_average():
    cases = {
        (strategy, optimizer, tensors): (tensors, F32, strategy, optimizer)
        for strategy in AVERAGING
        for optimizer in ("SGD", "AdamW")
        for tensors in (FEW, MANY)
    }
    return in_one_launch(on_device.counted, 2, cases)


@pytest.mark.parametrize("tensors", [FEW, MANY])
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
@pytest.mark.parametrize("strategy", AVERAGING)
def test_averaging_waits_no_more_for_many_tensors_than_for_few(strategy, optimizer, tensors, steps_that_average):
    moments = int(optimizer == "AdamW")  # are looked at now and then
    down, up, waits = AVERAGING[strategy]
    for found in steps_that_average[strategy, optimizer, tensors]:
        assert found["copies_down"] <= down + moments
        assert found["copies_up"] <= up
        assert found["synchronisations"] <= waits + moments


def test_snapshots_and_meetings_copy_many_tensors_at_once():
    few, many = outpace.spawn(on_device.met, 1, ((FEW, MANY),))[0]
    assert many == few
    assert max(many.values()) <= 4


@pytest.fixture(scope="module")
def overwritten_on_cpu():
    return outpace.spawn(on_device.overwritten, 1, ("allreduce", CPU))


@pytest.mark.parametrize("refuses", [False, True], ids=["registered", "through a buffer"])
def test_a_result_is_read_before_it_may_be_overwritten(refuses, overwritten_on_cpu):
    assert outpace.spawn(on_device.overwritten, 1, ("allreduce", DEVICE, refuses)) == overwritten_on_cpu


@pytest.fixture(scope="module")
def plain_on_cpu():
    return outpace.spawn(on_device.plain_run, 2, (torch.float32, "SGD", {}, CPU))


def test_a_step_reads_the_result_and_not_what_this_rank_gave(plain_on_cpu):
    assert outpace.spawn(on_device.plain_run, 2, (torch.float32, "SGD", {}, DEVICE)) == plain_on_cpu


def test_two_results_in_a_row_do_not_share_a_buffer_too_early():
    assert outpace.spawn(on_device.results_in_a_row, 1) == [[[1.0] * 8, [2.0] * 8]]


def test_a_result_does_not_overwrite_what_the_step_before_still_reads():
    assert outpace.spawn(on_device.read_while_the_next_comes, 1) == [[1.0] * 8]


@pytest.mark.parametrize(
    ("pinning", "registering", "words"),
    [(False, True, ["pinned buffer"]), (True, True, ["pinned buffer", "block"])],
    ids=["registering", "registering and pinning"],
)
def test_where_memory_is_refused_training_goes_on_and_says_once_what_it_costs(
    pinning, registering, words, plain_on_cpu
):
    for found, said in outpace.spawn(on_device.refused, 2, (pinning, registering)):
        assert found == plain_on_cpu[0]
        assert len(said) == len(words)
        for line, word in zip(said, words, strict=True):
            assert word in line
            assert "ulimit -l" in line


def test_memory_is_registered_once_and_given_back_and_what_others_registered_is_used():
    assert outpace.spawn(on_device.registered, 1) == [
        {"first": True, "again": True, "nothing": False, "by others": True, "in part": False, "left": [False, True]}
    ]
