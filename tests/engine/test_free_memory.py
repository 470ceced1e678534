"""How much memory is free, as kernels of all ages say it. Directories stand for /proc and /sys/fs/cgroup."""

from pathlib import Path

import pytest

from outpace.job.machine import available_bytes

MB = 1_000_000


class Machine:
    """One with 8 GB free, and its control groups."""

    def __init__(self, directory: Path) -> None:
        self.proc, self.groups = directory / "proc", directory / "cgroup"
        self.write(self.proc / "meminfo", "MemTotal: 16000000 kB\nMemAvailable: 8000000 kB\n")

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def belongs_to(self, *lines: str) -> None:
        self.write(self.proc / "self/cgroup", "\n".join(lines) + "\n")

    def group(self, path: str, limit: int | str, used: int, **stat: int) -> None:
        names = ("limit_in_bytes", "usage_in_bytes") if path.startswith("memory") else ("max", "current")
        self.write(self.groups / path / f"memory.{names[0]}", f"{limit}\n")
        self.write(self.groups / path / f"memory.{names[1]}", f"{used}\n")
        self.write(self.groups / path / "memory.stat", "".join(f"{key} {value}\n" for key, value in stat.items()))

    @property
    def available(self) -> int | None:
        return available_bytes(self.proc, self.groups)


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_without_limits_it_is_what_the_machine_has(machine):
    assert machine.available == 8_000_000 * 1024
    machine.belongs_to("0::/")
    machine.group(".", "max", 5 * MB)
    assert machine.available == 8_000_000 * 1024


def test_where_nobody_says_nothing_is_known(tmp_path):
    assert available_bytes(tmp_path, tmp_path) is None


def test_a_container_filled_by_what_files_left_in_memory_has_room(machine):
    machine.belongs_to("0::/")
    machine.group(
        *(".", 1000 * MB, 990 * MB),
        anon=90 * MB,
        file=880 * MB,
        shmem=80 * MB,
        inactive_file=500 * MB,
        active_file=300 * MB,
        slab_reclaimable=10 * MB,
    )
    assert machine.available == 820 * MB


def test_what_ranks_share_and_have_of_their_own_is_not_given_back(machine):
    machine.belongs_to("0::/")
    machine.group(".", 1000 * MB, 990 * MB, anon=600 * MB, file=390 * MB, shmem=390 * MB, inactive_anon=400 * MB)
    assert machine.available == 10 * MB


def test_more_than_the_limit_in_use_is_nothing_free(machine):
    machine.belongs_to("0::/")
    machine.group(".", 1000 * MB, 1001 * MB)
    assert machine.available == 0


def test_the_tightest_limit_above_this_process_counts(machine):
    machine.belongs_to("0::/user.slice/job.scope")
    machine.group("user.slice", 500 * MB, 100 * MB)
    machine.group("user.slice/job.scope", 900 * MB, 50 * MB)
    machine.group("other.slice", 10 * MB, 10 * MB)
    assert machine.available == 400 * MB


NO_LIMIT = 9_223_372_036_854_771_712


def test_limits_of_version_1_are_seen(machine):
    machine.belongs_to("5:cpu,cpuacct:/docker/1f", "4:memory:/docker/1f", "0::/docker/1f")
    machine.group("memory", NO_LIMIT, 3000 * MB)
    assert machine.available == 8_000_000 * 1024
    machine.group("memory/docker/1f", 700 * MB, 690 * MB, total_inactive_file=200 * MB, total_active_file=100 * MB)
    assert machine.available == 310 * MB


def test_in_a_container_of_version_1_its_own_group_is_at_the_top(machine):
    machine.belongs_to("4:memory:/kubepods/burstable/pod7/1f")
    machine.group("memory", 700 * MB, 600 * MB, total_inactive_file=50 * MB)
    assert machine.available == 150 * MB
