"""What one process shows to another is ordered by barriers, not by luck: docs/decisions/0013-memory-order.md.

On a processor that keeps no order of its own, others see for certain only what was there at a barrier. So at each
barrier a copy of the memory is taken, and what is shown after it must speak only of what is in the copy.
"""

import os
import struct

import pytest
import torch

import outpace
from outpace.engines.arena import arena, kernel
from outpace.engines.arena.kernel import Arena, Faults
from outpace.engines.arena.layout import ArenaLayout
from outpace.engines.arena.log import RECORD_BYTES, LogFile
from outpace.engines.arena.memory import Holds, Reduction, tag
from outpace.engines.sums import RowSums
from outpace.protocol.events import Done, Join
from outpace.protocol.round import Contribution, Round
from outpace.protocol.rules import Rules
from outpace.vector import Chunk

CHUNKS = [Chunk(torch.float32, 256 * i, 64) for i in range(5)]
RANKS = 3


@pytest.fixture
def files():
    made = arena.create_files()
    yield made
    made.close()


@pytest.fixture
def memory(files):
    layout = ArenaLayout.of(RANKS, 4, 256 * len(CHUNKS), len(CHUNKS), 1, 64, 64, 0, 64)
    arena.write_header(files.arena, layout, bytes(16), {})
    return Arena(files.arena, layout)


def sealed(number: int, slot: int) -> Round:
    given = tuple(Contribution(rank, 1, 1, 0, 1.0, 0, False) for rank in range(RANKS))
    return Round(number, given, RANKS, given[0], slot=slot)


def test_a_chunk_is_marked_as_done_only_after_a_barrier_behind_its_sum(memory, monkeypatch):
    rows = torch.randn(RANKS, 64 * len(CHUNKS))
    for rank, row in enumerate(rows):
        offset = memory.layout.row(rank, 0)
        memory.region(offset, row.nbytes).copy_(row.view(torch.uint8))
        memory.write_meta(memory.layout.row_meta(rank, 0), struct.pack("<I", 1) + b"\1")
    seen: list[torch.Tensor] = []
    monkeypatch.setattr(kernel, "before_showing", lambda: seen.append(memory.bytes.clone()))
    round_ = sealed(7, slot=2)
    sums = RowSums(memory.bytes, CHUNKS, Rules(RANKS), max_grad_norm=1.0)
    done = Reduction(memory, sums, lambda _: True, Faults()).work(round_, 0, helping=False)
    assert isinstance(done, Done)
    final = memory.bytes
    table, slot = memory.layout.chunk_states(round_.slot), memory.layout.slot(round_.slot)
    assert len(seen) == len(CHUNKS)
    for index, copy in enumerate(seen):
        marks = copy[table : table + 24 * len(CHUNKS)].view(torch.int64)[1::3]
        assert (marks == tag(round_)).tolist() == [i < index for i in range(len(CHUNKS))]
        for first, size in ((slot + 256 * index, 256), (table + 24 * index + 16, 8)):
            assert torch.equal(copy[first : first + size], final[first : first + size])
            assert copy[first : first + size].any()


def test_a_record_is_appended_between_two_barriers(files, monkeypatch):
    sizes: list[int] = []
    monkeypatch.setattr(kernel, "before_showing", lambda: sizes.append(os.fstat(files.log).st_size))
    for _ in range(2):
        LogFile(files.log).append(Join(0, 1))
    assert sizes == [0, RECORD_BYTES, RECORD_BYTES, 2 * RECORD_BYTES]


def test_a_hold_is_seen_before_its_rank_looks_and_until_it_has_read(memory, monkeypatch):
    theirs, mine = Holds(memory, 1), Holds(memory, 0)
    round_ = sealed(7, slot=2)
    looks: list[bool] = []
    monkeypatch.setattr(kernel, "before_looking", lambda: None)

    def held() -> bool:
        return theirs.others_use(round_.slot, 0, range(RANKS))

    with monkeypatch.context() as patched:
        patched.setattr(kernel, "before_looking", lambda: looks.append(memory.bytes[memory.layout.hold(0)].item() != 0))
        mine.take(round_)
        assert looks == [True]
        assert held()
        assert len(looks) == 2  # who wants the slot looks at the holds behind a barrier, too
    monkeypatch.setattr(kernel, "before_showing", lambda: looks.append(held()))
    mine.release()
    assert looks[2:] == [True]
    assert not held()


def test_a_hold_tells_its_slot_and_its_attempt(memory):
    theirs, mine = Holds(memory, 1), Holds(memory, 0)
    round_ = sealed(1 << 39, slot=3)._replace(attempt=255)
    mine.take(round_)
    assert theirs.others_use(3, 0, range(RANKS))
    assert not theirs.others_use(3, tag(round_), range(RANKS))
    assert not theirs.others_use(2, 0, range(RANKS))
    assert not theirs.others_use(3, 0, [1, 2])
    assert not mine.others_use(3, 0, range(RANKS))


@pytest.mark.skipif(os.uname().sysname != "Linux", reason="needs membarrier(2)")
def test_training_gives_the_same_where_the_processor_keeps_no_order(monkeypatch):
    calls: list[int] = []
    barrier = kernel._membarrier()
    assert barrier is not None
    monkeypatch.setattr(kernel, "_IS_STRONG", False)
    monkeypatch.setattr(kernel, "_membarrier", lambda: lambda: calls.append(barrier()))
    weight = torch.nn.Parameter(torch.zeros(3))
    with outpace.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), "eager-majority") as opt:
        for _ in range(3):
            weight.grad = torch.full((3,), -1.0)
            opt.step()
    assert weight.tolist() == [3.0] * 3
    assert calls
    assert set(calls) == {0}


def test_a_missing_barrier_is_said_once(monkeypatch, caplog):
    monkeypatch.setattr(kernel, "_IS_STRONG", False)
    monkeypatch.setattr(kernel, "_membarrier", lambda: None)
    kernel._warn.cache_clear()
    for _ in range(3):
        kernel.before_showing()
        kernel.before_looking()
    assert [r.message.startswith("membarrier(2) is not available here") for r in caplog.records] == [True]
