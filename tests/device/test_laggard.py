"""The device of these tests: whoever forgets a wait reads wrong numbers, every time."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import outpace
from tests.support import laggard

ROOT = Path(__file__).parents[2]


def in_a_rank(fn, *arguments):
    """In a process of its own: what torch knows of devices is for good."""
    (found,) = outpace.spawn(fn, 1, arguments)
    return found


def unwaited() -> dict[str, list[float]]:
    """What is read where a wait is missing, and where it is not."""
    laggard.load()
    side, main = torch.Stream(device="laggard:0"), torch.accelerator.current_stream()
    found = {}
    source = torch.full((3,), 7.0, pin_memory=True)
    for name, waits in (("up", False), ("up, waited for", True)):
        target = torch.zeros(3, device="laggard")
        if waits:
            side.wait_stream(main)
        with side:
            target.copy_(source, non_blocking=True)
        if waits:
            main.wait_stream(side)
        found[name] = target.tolist()
    for name, waits in (("down", False), ("down, waited for", True)):
        target = torch.zeros(3, pin_memory=True)
        target.copy_(torch.full((3,), 5.0, device="laggard"), non_blocking=True)
        if waits:
            torch.accelerator.synchronize()
        found[name] = target.tolist()
    source, target = torch.full((3,), 7.0, pin_memory=True), torch.zeros(3, device="laggard")
    target.copy_(source, non_blocking=True)
    source.fill_(8.0)  # overwritten before it was read
    found["read late"] = target.tolist()
    other = torch.zeros(3, device="laggard:1")
    other.copy_(target)
    found["other device"] = (other + 1).tolist()
    return found


def test_what_was_not_waited_for_has_not_happened():
    found = in_a_rank(unwaited)
    assert found["up"] == [0.0] * 3
    assert found["down"] == [0.0] * 3
    assert found["read late"] == [8.0] * 3
    assert found["up, waited for"] == [7.0] * 3
    assert found["down, waited for"] == [5.0] * 3
    assert found["other device"] == [9.0] * 3


def freed() -> tuple[list[float], list[float], list[float]]:
    laggard.load()
    side, main = torch.Stream(device="laggard:0"), torch.accelerator.current_stream()
    fresh = torch.empty(3, device="laggard").tolist()
    read = []
    for is_recorded in (False, True):
        kept, gone = torch.zeros(3, device="laggard"), torch.ones(3, device="laggard")
        side.wait_stream(main)
        with side:
            kept.copy_(gone)
        if is_recorded:
            gone.record_stream(side)
        del gone
        main.synchronize()  # the freed memory may be used again from here on
        side.synchronize()
        read.append(kept.tolist())
    return fresh, read[0], read[1]


def test_memory_that_was_not_written_or_was_freed_is_nan_unless_its_stream_was_recorded():
    fresh, unrecorded, recorded = in_a_rank(freed)
    assert all(value != value for value in (*fresh, *unrecorded))
    assert recorded == [1.0] * 3


def mixes() -> list[str]:
    laggard.load()
    said = []
    for other in (torch.ones(3), torch.ones(3, device="laggard:1")):
        with pytest.raises(RuntimeError) as error:
            torch.ones(3, device="laggard:0") + other
        said.append(str(error.value).partition("\n")[0])
    return said


def test_tensors_of_the_host_and_of_another_device_are_refused():
    assert all("two devices" in said for said in in_a_rank(mixes))


def test_the_host_cannot_touch_device_memory_by_accident():
    touch = (
        "import ctypes, torch; from tests.support import laggard; laggard.load(); "
        "x = torch.ones(3, device='laggard'); torch.accelerator.synchronize(); ctypes.string_at(x.data_ptr(), 12)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, "-c", touch], cwd=ROOT, env=environment, capture_output=True)
    assert ended.returncode == -signal.SIGSEGV


def counts() -> dict[str, int]:
    native = laggard.load()
    before = native.counters()
    x = torch.ones(5, 5).to("laggard")
    (x @ x + 1).sum().item()
    x.cpu()
    return {name: value - before[name] for name, value in native.counters().items()}


def test_copies_bytes_and_waits_are_counted():
    found = in_a_rank(counts)
    assert (found["copies_up"], found["bytes_up"]) == (1, 100)
    assert (found["copies_down"], found["bytes_down"]) == (1, 100)
    assert found["synchronisations"] == 3
