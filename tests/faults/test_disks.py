"""A disk that is full or takes nothing ends a recording, never a training."""

import os

import pytest

import outpace
from outpace.observe.reader import read_trace
from tests.support import troubled
from tests.support.agreement import agree

WORLD, STEPS = 3, 250


def trained(log_dir) -> None:
    reports = outpace.spawn(troubled.record_to, WORLD, (str(log_dir), STEPS))
    agree(reports)
    assert [value for row in reports[0].counts for value in row] == pytest.approx([1.0] * WORLD * STEPS)
    assert [report.stats.steps for report in reports] == [STEPS] * WORLD


def test_training_goes_on_when_the_disk_is_full_and_the_trace_says_that_it_was_cut(tiny_disk):
    trained(tiny_disk)
    trace = read_trace(tiny_disk)
    assert 0 < max(len(rank.steps) for rank in trace.ranks.values()) < STEPS
    assert os.statvfs(tiny_disk).f_bavail == 0, "the disk was not full"


def test_training_goes_on_when_every_write_fails(tmp_path):
    for rank in range(WORLD):
        (tmp_path / f"rank-{rank:05d}.jsonl").symlink_to("/dev/full")
    trained(tmp_path)


def test_training_goes_on_when_the_disk_takes_nothing(tmp_path):
    readers = []
    for rank in range(WORLD):
        path = tmp_path / f"rank-{rank:05d}.jsonl"
        os.mkfifo(path)
        readers.append(os.open(path, os.O_RDONLY | os.O_NONBLOCK))  # and nobody ever reads
    try:
        trained(tmp_path)
    finally:
        for reader in readers:
            os.close(reader)
