"""A rank's ledger is whole, whatever a signal handler does while the log is read, and at whatever instruction.

Handlers of signals run between any two instructions of Python code. Here a trace function stands for them: it is called
at every instruction, so that the place can be chosen.
"""

from __future__ import annotations

import os
from typing import Any
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from outpace.engines.arena import arena, log
from outpace.engines.arena.kernel import Arena, Bell, Faults, Life
from outpace.engines.arena.layout import ArenaLayout
from outpace.engines.arena.log import RECORD_BYTES, ArenaLog, LogFile
from outpace.engines.arena.snapshot import SnapshotStore
from outpace.interface import Contents
from outpace.protocol.events import Event
from outpace.protocol.ledger import Ledger
from outpace.protocol.rules import Rules
from tests.support.interrupts import handler_at, interrupted_at, raising
from tests.support.protocol.drawn_logs import CHOICES, all_rules, log_of, plain
from tests.support.protocol.simulated_ranks import Choice


class Reader:
    """One rank that reads a log in shared memory, as in training."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.files = arena.create_files()
        layout = ArenaLayout.of(rules.world, 2, 64, 1, 1, 64, 64, 0, 64)
        arena.write_header(self.files.arena, layout, bytes(16), {})
        self.memory = Arena(self.files.arena, layout)
        self.snapshots = SnapshotStore(self.memory)
        self.log = LogFile(self.files.log)
        self.watch = ArenaLog(
            0, rules, self.log, self.snapshots, Bell(self.memory.word), Life(self.files.life), Faults(), 1.0
        )

    def append(self, events: list[Event]) -> None:
        for event in events:
            os.write(self.files.log, log.encode(event, event.time_ns))

    def leave_only_a_snapshot(self, events: list[Event]) -> None:
        """What a rank finds that comes late: these events are no longer in the log."""
        ledger = Ledger(self.rules)
        for event in events:
            ledger.apply(event)
        self.snapshots.write(0, Contents([], {}), ledger.to_state(), len(events) * RECORD_BYTES)
        self.snapshots.announce(0)
        with mock.patch.object(log, "CUT_AT_BYTES", 4096):
            self.log.cut(len(events) * RECORD_BYTES)

    def look_interrupted_at(self, instruction: int) -> None:
        with interrupted_at(instruction):
            self.watch.look()

    def close(self) -> None:
        self.files.close()


def folded(rules: Rules, events: list[Event]) -> Any:
    ledger = Ledger(rules)
    for event in events:
        ledger.apply(event)
    return plain(ledger)


def instructions_of(rules: Rules, events: list[Event]) -> int:
    reader = Reader(rules)
    reader.append(events)
    with handler_at(0, raising) as passed:
        reader.watch.look()
    reader.close()
    return passed[0]


PLACE = st.floats(0, 1, exclude_max=True)


@settings(max_examples=120)
@given(all_rules(), CHOICES, PLACE, st.floats(0, 1), st.booleans())
def test_a_fold_that_a_handler_ends_at_any_instruction_is_folded_anew(
    rules: Rules, choices: list[Choice], where: float, share: float, is_cut: bool
) -> None:
    events = log_of(rules, choices)
    before, after = events[: int(share * len(events))], events[int(share * len(events)) :]
    total = instructions_of(rules, after)
    reader = Reader(rules)
    reader.append(before)
    reader.watch.look()
    reader.append(after)
    if is_cut:
        reader.leave_only_a_snapshot(before)
    instruction = 1 + int(where * total)
    reader.look_interrupted_at(instruction)
    reader.look_interrupted_at(2 * instruction)  # also while it is made whole
    assert plain(reader.watch.ledger) in (folded(rules, before), folded(rules, events))  # nobody ever sees half of it
    reader.watch.look()
    assert plain(reader.watch.ledger) == folded(rules, events)
    reader.close()


@settings(max_examples=60)
@given(all_rules(), CHOICES, PLACE)
def test_a_handler_may_read_the_log_in_the_middle_of_a_fold(rules: Rules, choices: list[Choice], where: float) -> None:
    """As one does that saves a checkpoint: `state_dict()` looks at the log."""
    events = log_of(rules, choices)
    total = instructions_of(rules, events)
    reader = Reader(rules)
    reader.append(events)
    with handler_at(1 + int(where * total), reader.watch.look):
        reader.watch.look()
    assert plain(reader.watch.ledger) == folded(rules, events)
    reader.watch.look()
    assert plain(reader.watch.ledger) == folded(rules, events)
    reader.close()
