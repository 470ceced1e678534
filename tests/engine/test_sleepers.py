"""A rank that is stopped in the middle of a reduction and wakes up when all is over. Both ranks are in this process."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
import torch

from outpace.engines.arena import arena
from outpace.engines.arena.kernel import Arena, Bell, Faults, Life
from outpace.engines.arena.layout import ArenaLayout
from outpace.engines.arena.log import ArenaLog, LogFile
from outpace.engines.arena.memory import Helper, Holds
from outpace.engines.arena.snapshot import SnapshotStore
from outpace.engines.sums import RowSums
from outpace.protocol.events import Arrive, Done, Join
from outpace.protocol.round import Results
from outpace.protocol.rules import Rules
from outpace.vector import Chunk

RULES = Rules(2, quorum="full", grace=0)
CHUNKS = [Chunk(torch.float32, 256 * i, 64) for i in range(3)]
BYTES = 256 * len(CHUNKS)


class Sleep(Faults):
    """At a point of its work, the rank sleeps while others do something."""

    def __init__(self, at: int, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self._left, self._meanwhile = at, meanwhile

    def at(self, point: str, round_: int) -> None:
        self._left -= point == "reducing"
        if self._left < 0:
            self._left = len(CHUNKS)  # once
            self._meanwhile()


@pytest.fixture
def memory():
    files = arena.create_files()
    layout = ArenaLayout.of(2, Results(RULES).slots, BYTES, len(CHUNKS), 1, 64, 64, 0, 64)
    arena.write_header(files.arena, layout, bytes(16), {})
    yield files, Arena(files.arena, layout)
    files.close()


@pytest.mark.parametrize("at", range(len(CHUNKS)))
def test_a_sleeper_that_wakes_in_a_reduction_does_not_spoil_the_result(memory, at: int) -> None:
    files, shared = memory
    sums = RowSums(shared.bytes, CHUNKS, RULES, max_grad_norm=None)

    def rank_of(rank: int, faults: Faults) -> tuple[ArenaLog, Helper]:
        parts = (SnapshotStore(shared), Bell(shared.word), Life(files.life), faults, 10.0)
        log = ArenaLog(rank, RULES, LogFile(files.log), *parts)
        log.incarnation = 1
        log.append(Join(rank, 1))
        return log, Helper(rank, shared, sums, Holds(shared, rank), log)

    def write(rank: int, value: float) -> None:
        shared.region(shared.layout.row(rank, 0), BYTES).view(torch.float32).fill_(value)
        shared.write_meta(shared.layout.row_meta(rank, 0), struct.pack("<I", 1) + b"\1")

    def others_go_on() -> None:
        """The other rank does what is left of the round; then both rows are written for the next one."""
        log, helper = awake
        log.look()
        event = helper._work(log.ledger.reducing, helping=True)
        assert isinstance(event, Done)
        log.append(event)
        assert log.ledger.complete == 1
        for rank in range(2):
            write(rank, 100.0)

    asleep, awake = rank_of(0, Sleep(at, others_go_on)), rank_of(1, Faults())
    for rank, (log, _) in enumerate((asleep, awake)):
        write(rank, 1.0 + rank)
        log.append(Arrive(rank, 1, 1, 0, 0))
    log, helper = asleep
    log.look()
    event = helper._work(log.ledger.reducing, helping=False)
    log.look()  # if it has not, what is wrong is what it wrote meanwhile
    slot = shared.layout.slot(log.ledger.completed[0].slot)
    assert shared.region(slot, BYTES).view(torch.float32).tolist() == [1.5] * (BYTES // 4)
    assert event is None, "it has nothing to say of a round that is over"
