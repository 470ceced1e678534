"""Arenas in files with names: who makes, sweeps and removes their directories."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import outpace
from outpace.engines.arena import arena
from tests.support.forbidden import MEMFD_CREATE, forbid_memfd
from tests.support.interrupts import handler_at

SWEEP = "import os; from outpace.engines.arena import arena; arena.create_files(); os._exit(0)"  # as if killed
START = """
import sys
from outpace.engines.arena import arena
files = arena.create_files()
print(files.directory, flush=True)
sys.stdin.readline()
arena.remove_directory(files)
files.close()
"""


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("OUTPACE_ARENA_DIR", str(tmp_path))
    return tmp_path


def sweep_as_another_job() -> None:
    """In a process of its own: locks do not hold against the process that has them."""
    subprocess.run([sys.executable, "-c", SWEEP], check=True)


def started() -> tuple[subprocess.Popen, Path]:
    process = subprocess.Popen([sys.executable, "-c", START], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen) -> None:
    process.communicate("\n", timeout=60)
    assert process.returncode == 0


def test_a_job_that_is_starting_is_not_swept_away_and_one_that_was_killed_is(directory):
    sweep_as_another_job()
    (abandoned,) = directory.iterdir()
    process, starting = started()  # swept what was abandoned; its ranks have not joined yet
    assert list(directory.iterdir()) == [starting]
    assert starting != abandoned
    sweep_as_another_job()
    assert set(os.listdir(starting)) == set(arena.NAMES)
    end(process)
    assert not starting.exists()


def test_who_has_opened_the_files_keeps_their_directory_though_its_maker_is_gone(directory):
    maker, made = started()
    files = arena.open_files([str(made / name) for name in arena.NAMES], made)
    maker.kill()
    maker.communicate()
    sweep_as_another_job()
    assert set(os.listdir(made)) == set(arena.NAMES)
    arena.remove_directory(files)
    files.close()
    assert not made.exists()


def test_a_sweep_at_any_instruction_of_the_making_harms_nobody(directory):
    def sweep() -> None:
        """In another process, which has none of this one's locks."""
        child = os.fork()
        if child == 0:
            arena._in_use.clear()
            arena._sweep(directory)
            os._exit(0)
        os.waitpid(child, 0)

    with handler_at(0, sweep) as passed:
        arena.create_files().close()
    for instruction in range(1, passed[0], 5):
        with handler_at(instruction, sweep):
            files = arena.create_files()
        assert files.directory is not None
        assert set(os.listdir(files.directory)) == set(arena.NAMES)
        arena.remove_directory(files)
        files.close()
    assert list(directory.iterdir()) == []


def train_without_memfd() -> tuple[list[float], list[str]]:
    """As in a container whose seccomp profile forbids it, which holds for this process until it ends. Returns the
    weights, and what was logged."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("outpace").addHandler(handler)
    forbid_memfd()
    for _ in range(2):
        weight = torch.nn.Parameter(torch.zeros(3))
        with outpace.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), "allreduce", timeout_s=60.0) as opt:
            weight.grad = torch.full((3,), -1.0)
            opt.step()
    return weight.tolist(), said


@pytest.mark.skipif(MEMFD_CREATE is None, reason="the number of memfd_create is not known here")
def test_where_anonymous_memory_is_forbidden_files_serve_and_that_is_said_once():
    def leftovers() -> set[Path]:
        return set(Path("/dev/shm").glob(f"outpace-{os.getuid()}-*"))

    before = leftovers()
    (first, said), (second, unsaid) = outpace.spawn(train_without_memfd, 2)
    assert first == second == [1.0] * 3
    assert leftovers() <= before
    (message,) = said  # of two optimizers
    assert "memfd_create: [Errno 1] Operation not permitted" in message
    assert "OUTPACE_ARENA_DIR" in message
    assert unsaid == []
