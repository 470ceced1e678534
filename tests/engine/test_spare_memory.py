"""What was needed only while somebody was late is given back, and never what somebody still uses."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from outpace.engines.arena import arena
from outpace.engines.arena.kernel import Arena, Bell, Faults, Life
from outpace.engines.arena.layout import PAGE, ArenaLayout
from outpace.engines.arena.log import ArenaLog, LogFile
from outpace.engines.arena.memory import UNUSED_ROUNDS, Holds, SpareMemory
from outpace.engines.arena.snapshot import SnapshotStore
from outpace.interface import Contents
from outpace.protocol.events import Arrive, Done, Join
from outpace.protocol.round import Results
from outpace.protocol.rules import Rules

RULES = Rules(2, quorum="solo", grace=0)
VECTOR_BYTES = 8 * PAGE
LATER = 100 + UNUSED_ROUNDS


class Rank:
    def __init__(self, rank: int, files: arena.Files, shared: Arena) -> None:
        self.shared, self.layout = shared, shared.layout
        self.snapshots = SnapshotStore(shared)
        parts = (self.snapshots, Bell(shared.word), Life(files.life), Faults(), 10.0)
        self.log = ArenaLog(rank, RULES, LogFile(files.log), *parts)
        self.log.incarnation = 1
        self.log.append(Join(rank, 1))
        self.holds = Holds(shared, rank)
        self.spare = SpareMemory(rank, shared, self.holds, self.log)

    def fill(self, offset: int, nbytes: int = VECTOR_BYTES) -> None:
        self.shared.region(offset, nbytes).fill_(7)

    def is_there(self, offset: int, nbytes: int = VECTOR_BYTES) -> bool:
        return bool((self.shared.region(offset, nbytes) == 7).all())


@pytest.fixture
def ranks() -> Iterator[list[Rank]]:
    files = arena.create_files()
    layout = ArenaLayout.of(2, Results(RULES).slots, VECTOR_BYTES, 1, 1, 64, 64, 0, 64)
    arena.write_header(files.arena, layout, bytes(16), {})
    shared = Arena(files.arena, layout)
    yield [Rank(rank, files, shared) for rank in range(2)]
    files.close()


def test_pages_are_given_back_and_their_neighbours_stay(ranks: list[Rank]) -> None:
    rank = ranks[0]
    for slot in range(3):
        rank.fill(rank.layout.slot(slot))
    rank.spare.slots[1] = 100
    rank.spare.give_back(LATER - 1)
    assert rank.is_there(rank.layout.slot(1)), "it was used a moment ago"
    rank.spare.give_back(LATER)
    assert [rank.is_there(rank.layout.slot(slot)) for slot in range(3)] == [True, False, True]
    assert not rank.shared.region(rank.layout.slot(1), VECTOR_BYTES).any()


def test_the_system_has_the_memory_again(ranks: list[Rank]) -> None:
    rank, fd = ranks[0], os.memfd_create("measured")
    os.ftruncate(fd, rank.layout.total_bytes)
    memory = Arena(fd, rank.layout)
    memory.region(0, 64 * PAGE).fill_(7)
    before = os.fstat(fd).st_blocks
    memory.punch(PAGE, 32 * PAGE)
    assert before - os.fstat(fd).st_blocks == 32 * PAGE // 512
    os.close(fd)


def test_a_slot_that_is_kept_or_being_written_or_that_a_sleeper_holds_is_left_alone(ranks: list[Rank]) -> None:
    rank, other = ranks
    rank.log.append(Arrive(0, 1, 1, 0, 0))
    sealed = rank.log.ledger.reducing
    assert sealed is not None
    rank.fill(rank.layout.slot(sealed.slot))
    for event in (None, Done(0, 0, 0, sealed.slot), Arrive(0, 1, 2, 1, 0), Arrive(1, 1, 1, 1, 0)):
        if event is not None:
            rank.log.append(event)
        if isinstance(event, Arrive) and event.rank == 1:  # all have applied it: it is free, but somebody sleeps there
            other.holds.take(sealed)
        rank.spare.slots[sealed.slot] = 100
        rank.spare.give_back(LATER)
        assert rank.is_there(rank.layout.slot(sealed.slot)), event
    other.holds.release()
    rank.spare.slots[sealed.slot] = 100
    rank.spare.give_back(LATER)
    assert not rank.is_there(rank.layout.slot(sealed.slot))


def test_nobody_writes_into_a_slot_that_is_just_being_given_back(ranks: list[Rank]) -> None:
    rank, other = ranks
    rank.holds.take_idle(3)
    for mark in (0, 1, 257):
        assert other.holds.others_use(3, mark, [0, 1])


def test_a_rank_gives_back_only_rows_of_its_own_that_are_free_and_never_its_first(ranks: list[Rank]) -> None:
    rank = ranks[0]
    inner = [(rank.layout.row(0, row) // PAGE + 1) * PAGE for row in range(2)]
    for row in range(2):
        rank.fill(inner[row], VECTOR_BYTES - PAGE)
        rank.spare.rows[row] = 100
    rank.log.append(Arrive(0, 1, 1, 0, 1))
    rank.spare.give_back(LATER)
    assert all(rank.is_there(inner[row], VECTOR_BYTES - PAGE) for row in range(2)), "a contribution is in the second"
    ledger = rank.log.ledger
    while ledger.reducing is not None:
        rank.log.append(Done(0, ledger.reducing.number, ledger.reducing.attempt, ledger.reducing.slot))
    rank.spare.give_back(LATER)
    assert [rank.is_there(inner[row], VECTOR_BYTES - PAGE) for row in range(2)] == [True, False]


def test_of_an_emptied_snapshot_the_ledger_is_left_if_it_is_wanted(ranks: list[Rank]) -> None:
    rank = ranks[0]
    weights = torch.ones(2 * VECTOR_BYTES // 4)
    rank.snapshots.write(0, Contents([weights], {}), rank.log.ledger.to_state(), position=0)
    written = rank.snapshots.read_plain(0)
    rank.snapshots.empty(0, keeps_plain=True)
    assert rank.snapshots.read_plain(0) == written
    contents = rank.snapshots.read(0)
    assert contents is not None
    assert int((contents.tensors[0] == 0).sum()) >= weights.numel() - PAGE // 4
    rank.snapshots.empty(0, keeps_plain=False)
    assert rank.snapshots.read_plain(0) is None


def test_of_an_emptied_snapshot_the_base_is_left_if_it_is_the_latest(ranks: list[Rank]) -> None:
    rank = ranks[0]
    weights, frozen = torch.ones(2 * VECTOR_BYTES // 4), {"frozen": torch.ones(PAGE), "queue": torch.ones(3)}
    rank.snapshots.write(0, Contents([weights], {}, frozen), rank.log.ledger.to_state(), position=0)
    rank.snapshots.empty(0, keeps_plain=False, keeps_base=True)
    contents = rank.snapshots.read(0)
    assert contents is not None
    assert contents.base.keys() == frozen.keys()
    assert all(torch.equal(contents.base[name], frozen[name]) for name in frozen)
    assert int((contents.tensors[0] == 0).sum()) >= weights.numel() - PAGE // 4
