"""Every strategy with parameters on a device: the same bits as on the CPU, and every contribution exactly once."""

import pytest
import torch

import outpace
from outpace import strategies
from tests.support import on_device
from tests.support.family_checks import CHOICES
from tests.support.launches import in_one_launch, several_in_one_launch
from tests.support.on_device import CPU, DEVICE

FAMILY = {name: CHOICES.get(name, name) for name in strategies.names()} | {
    name: name
    for name in ("wagma:sync=wait", *(f"eager-majority:codec={c}" for c in ("bf16", "global-qsgd", "ok-topk")))
}
#: whose numbers do not depend on who comes first
IN_LOCK_STEP = (
    *("allreduce", "d-psgd", "dasgd", "decentlam", "diloco", "local-sgd", "matcha", "noloco", "post-local-sgd", "sgp"),
    "eager:quorum=full,codec=bf16",
)
#: that keep the mean of all weights, so that it counts steps
KEEP_THE_MEAN = (
    *("allreduce", "eager-majority:repair=none", "eager-solo:repair=none"),
    *("ad-psgd", "d-psgd", "local-sgd:every=3", "dasgd", "sgp"),
)
every_strategy = pytest.mark.parametrize("name", FAMILY)
SLOW_US = 50  # on average for each kernel and copy, at random: every fourth is late
#: four ranks have all that two have: groups, matchings, and somebody who is late among others who are not
WORLDS = [4, pytest.param(2, marks=pytest.mark.long)]


@pytest.fixture(scope="module", params=WORLDS)
def in_simulated_time(request):
    (found,) = outpace.spawn(on_device.simulated, 1, (FAMILY, request.param))
    return found


@pytest.mark.timeout(900)
@every_strategy
def test_whoever_is_late_the_bits_are_those_of_the_cpu(name, in_simulated_time):
    on_cpu, on_the_device = in_simulated_time[name]
    assert on_the_device == on_cpu
    assert len(set(on_the_device)) == 1


@pytest.fixture(scope="module", params=WORLDS)
def in_processes(request):
    """What the ranks saw, by what was asked and of which strategy: one world does one after the other."""
    lock_step = {name: CHOICES.get(name, name) for name in IN_LOCK_STEP}
    cases = {
        **{("slow", name): (on_device.train, its, 8, DEVICE, SLOW_US) for name, its in (FAMILY | lock_step).items()},
        **{("cpu", name): (on_device.train, its, 8, CPU) for name, its in lock_step.items()},
        **{("counts", name): (on_device.count, name, 12, SLOW_US) for name in KEEP_THE_MEAN},
    }
    return several_in_one_launch(request.param, cases)


@pytest.mark.timeout(900)
@every_strategy
def test_all_ranks_end_with_the_same_bits_on_a_device_that_is_slow_at_random(name, in_processes):
    for digests in zip(*((met, final) for met, final, _, _ in in_processes["slow", name]), strict=True):
        assert len(set(digests)) == 1
    assert all(after < before for _, _, before, after in in_processes["slow", name])


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", IN_LOCK_STEP)
def test_in_processes_the_bits_are_those_of_the_cpu(name, in_processes):
    assert in_processes["slow", name] == in_processes["cpu", name]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("strategy", KEEP_THE_MEAN)
def test_every_contribution_is_applied_exactly_once(strategy, in_processes):
    counts = in_processes["counts", strategy]
    steps = [mine for _, _, mine in counts]
    for met, final, _ in counts:
        assert met == pytest.approx([7] * len(steps))
        assert final == pytest.approx(steps)


DTYPES = (torch.float32, torch.bfloat16, torch.float16)
OPTIMIZERS = {
    "SGD": ("SGD", {"momentum": 0.5, "nesterov": True}),
    "SGD fused": ("SGD", {"momentum": 0.5, "fused": True}),
    "AdamW foreach": ("AdamW", {"foreach": True}),
    "AdamW fused": ("AdamW", {"fused": True}),
}
OF_HALVES = ("SGD", "AdamW fused")  #: what the types of two bytes are tried with
NUMBERS = [(dtype, name) for dtype in DTYPES for name in OPTIMIZERS if dtype is torch.float32 or name in OF_HALVES]


@pytest.fixture(scope="module")
def numbers():
    cases = {
        (dtype, name, *where, last): (dtype, *OPTIMIZERS[name], *where, last)
        for dtype, name in NUMBERS
        for where in ((CPU,), (DEVICE,), (DEVICE, "laggard:1"), (DEVICE, CPU))
        for last in (False, True)
    }
    return in_one_launch(on_device.weights_after, 2, cases)


@pytest.mark.parametrize("channels_last", [False, True], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize(
    "devices", [(DEVICE,), (DEVICE, "laggard:1"), (DEVICE, CPU)], ids=["one", "two", "one and cpu"]
)
@pytest.mark.parametrize(("dtype", "optimizer"), NUMBERS, ids=str)
def test_types_layouts_optimizers_and_several_devices_give_the_numbers_of_the_cpu(
    dtype, optimizer, devices, channels_last, numbers
):
    on_cpu = numbers[dtype, optimizer, CPU, channels_last]
    assert numbers[(dtype, optimizer, *devices, channels_last)] == on_cpu
    assert all(value == value for value in on_cpu[0])
    assert on_cpu[0] == on_cpu[1]


@pytest.fixture(scope="module")
def other_ways():
    return outpace.spawn(on_device.in_other_ways, 2)


@pytest.mark.parametrize("way", ["scaled", "as default", "compiled loss", "compiled step"])
def test_a_scaler_a_default_device_and_compiling_change_nothing(way, other_ways):
    for found in other_ways:
        assert found[way] == found["plain"]


def test_a_capturable_optimizer_differs_by_rounding_alone(other_ways):
    for found in other_ways:
        assert found["capturable"] == pytest.approx(found["plain"], abs=1e-4)
