"""Records of the shared log: what an event says is what all read, and whoever appends one learns what became of it."""

from __future__ import annotations

import contextlib
from typing import get_args, get_type_hints
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outpace.engines.arena import arena, log
from outpace.engines.arena.kernel import Arena, Bell, Faults, Life
from outpace.engines.arena.layout import ArenaLayout
from outpace.engines.arena.log import RECORD_BYTES, ArenaLog, LogFile, decode, encode
from outpace.engines.arena.snapshot import SnapshotStore
from outpace.errors import ArenaInvalid
from outpace.interface import Contents
from outpace.protocol import events as ev
from outpace.protocol.events import Event, OutcomeKind
from outpace.protocol.rules import Publishing, Rules

KINDS = get_args(Event)
SHORT = {"rank": 16, "host": 16, "peer": 16, "pool": 16, "row": 8, "slot": 32, "buffer": 32, "index": 32, "pieces": 16}
MORE = {"incarnation": 32, "attempt": 32, "epoch": 32, "digest": 32, "items": 32}  #: and all other numbers have 63 bits


def value_of(kind: type, name: str, type_: type) -> st.SearchStrategy[object]:
    if type_ is float:
        return st.floats(allow_nan=False)
    if type_ is bool:
        return st.booleans()
    short = {"step": 32} if kind is ev.Arrive else {} if kind is ev.Seal else {"number": 32}
    bits = {**SHORT, **MORE, **short}.get(name, 63)
    return st.integers(0, (1 << bits) - 1)


def events_of(kind: type[Event]) -> st.SearchStrategy[Event]:
    return st.builds(kind, **{n: value_of(kind, n, t) for n, t in get_type_hints(kind).items()})


@pytest.mark.parametrize("kind", KINDS)
def test_every_event_is_read_as_it_was_written(kind: type[Event]) -> None:
    @given(st.lists(events_of(kind), max_size=3))
    def check(events: list[Event]) -> None:
        records = b"".join(encode(event, event.time_ns) for event in events)
        assert len(records) == len(events) * RECORD_BYTES
        found = decode(records)
        assert found == events
        assert [type(event) for event in found] == [kind] * len(events)

    check()


@given(events_of(ev.Arrive), st.integers(0, 59), st.integers(1, 255))
def test_a_record_that_was_changed_anywhere_is_refused(event: Event, place: int, change: int) -> None:
    record = bytearray(encode(event, event.time_ns))
    record[place] ^= change
    with pytest.raises(ArenaInvalid if record[0] else log.LogCut):
        decode(bytes(record))


class Ranks:
    """Two ranks that share an arena, and take turns in this process."""

    def __init__(self, **choices: object) -> None:
        self.rules = Rules(2, quorum="full", grace=0, **choices)  # type: ignore[arg-type]
        self.files = arena.create_files()
        layout = ArenaLayout.of(2, 4, 64, 1, 1, 64, 64, 0, 64)
        arena.write_header(self.files.arena, layout, bytes(16), {})
        self.memory = Arena(self.files.arena, layout)
        self.snapshots = SnapshotStore(self.memory)
        self.watches = [self._watch(rank) for rank in range(2)]

    def _watch(self, rank: int) -> ArenaLog:
        rest = (Bell(self.memory.word), Life(self.files.life), Faults(), 1.0)
        return ArenaLog(rank, self.rules, LogFile(self.files.log), self.snapshots, *rest)

    def close(self) -> None:
        self.files.close()


@pytest.fixture
def ranks():
    with contextlib.closing(Ranks()) as made:
        yield made


@pytest.fixture
def publishing_ranks():
    with contextlib.closing(Ranks(publishes=Publishing(rows=4))) as made:
        yield made


def test_an_append_answers_for_its_own_event_whatever_its_kind(ranks: Ranks) -> None:
    one, other = ranks.watches
    kind = OutcomeKind
    for watch, event, expected in (
        (one, ev.Join(0, 1), kind.TAKEN),
        (other, ev.Join(1, 1), kind.TAKEN),
        (one, ev.Join(0, 1), kind.IGNORED),
        (one, ev.Claim(0, 1, 0), kind.TAKEN),
        (other, ev.Claim(1, 1, 0), kind.IGNORED),
        (one, ev.Snapshot(0, 1, 0, 0, 0), kind.TAKEN),
        (other, ev.Tell(1, 1, 0, 0, 2.5), kind.TAKEN),
        (one, ev.Arrive(0, 1, 1, 0, 0), kind.ON_TIME),
        (one, ev.Arrive(0, 1, 1, 0, 0), kind.REPEATED),
        (one, ev.Seal(0), kind.IGNORED),
        (other, ev.Arrive(1, 1, 1, 0, 0), kind.ON_TIME),
        (other, ev.Attempt(0, 1, 1), kind.TAKEN),
        (one, ev.Attempt(0, 1, 2), kind.IGNORED),
        (one, ev.Refuse(0, 1, 1, 0), kind.TAKEN),
        (one, ev.Done(0, 0, 0, 0), kind.IGNORED),
        (one, ev.Done(0, 0, 2, 0), kind.TAKEN),
        (one, ev.Sync(0, 1, 0), kind.TAKEN),
        (other, ev.Finish(1, 1), kind.TAKEN),
        (one, ev.Finish(1, 1), kind.IGNORED),
        (one, ev.Dead(1, 1), kind.TAKEN),
        (one, ev.Dead(1, 1), kind.IGNORED),
    ):
        assert watch.append(event).kind is expected, event


def test_an_append_about_published_weights_answers_for_its_own_event(publishing_ranks: Ranks) -> None:
    one, other = publishing_ranks.watches
    for watch, event, expected in (
        (one, ev.Join(0, 1), OutcomeKind.TAKEN),
        (other, ev.Join(1, 1), OutcomeKind.TAKEN),
        (one, ev.Publish(0, 1, 0, 0), OutcomeKind.ON_TIME),
        (one, ev.Publish(0, 1, 1, 0), OutcomeKind.IGNORED),
        (other, ev.Publish(1, 1, 0, 0), OutcomeKind.ON_TIME),
        (other, ev.Swap(1, 1, 0, 1, 1), OutcomeKind.TAKEN),
        (one, ev.Swap(0, 1, 1, 1, 1), OutcomeKind.IGNORED),
        (one, ev.Read(0, 1, 0), OutcomeKind.TAKEN),
        (one, ev.Withdraw(0, 1, 1), OutcomeKind.IGNORED),
        (one, ev.Withdraw(0, 1, 2), OutcomeKind.TAKEN),
    ):
        assert watch.append(event).kind is expected, event


def test_what_others_append_meanwhile_is_no_answer(ranks: Ranks) -> None:
    one, other = ranks.watches
    one.append(ev.Join(0, 1))
    other.append(ev.Join(1, 1))
    with mock.patch.object(LogFile, "now_ns", return_value=7):  # all at one time, and in the same words
        other.append(ev.Claim(1, 1, 0))
        other.append(ev.Read(0, 1, 0))
        assert one.append(ev.Claim(0, 1, 0)).kind is OutcomeKind.IGNORED


def test_a_handler_that_appends_in_the_middle_of_an_append_changes_no_answer(ranks: Ranks) -> None:
    one, other = ranks.watches
    one.append(ev.Join(0, 1))
    other.append(ev.Join(1, 1))
    before, answers = one._until_folded, []

    def interrupted() -> None:
        one._until_folded = before  # type: ignore[method-assign]
        answers.append(one.append(ev.Claim(0, 1, 0)))
        before()

    one._until_folded = interrupted  # type: ignore[method-assign]
    assert one.append(ev.Arrive(0, 1, 1, 0, 0)).kind is OutcomeKind.ON_TIME
    assert [answer.kind for answer in answers] == [OutcomeKind.TAKEN]
    assert not one._appended


def test_what_became_of_a_record_that_was_passed_over_by_a_snapshot_is_unknown(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "CUT_AT_BYTES", 4096)
    one, other = ranks.watches
    one.append(ev.Join(0, 1))
    other.append(ev.Join(1, 1))
    fold = one._until_folded

    def asleep() -> None:
        """The other rank fills the log, leaves a snapshot, and gives back what lies before it."""
        for step in range(128):
            other.append(ev.Tell(1, 1, step, 0, 0.0))
        ranks.snapshots.write(0, Contents([], {}), other.ledger.to_state(), other.position)
        ranks.snapshots.announce(0)
        other.file.cut(other.position)
        fold()

    one._until_folded = asleep  # type: ignore[method-assign]
    outcome = one.append(ev.Tell(0, 1, 0, 0, 1.0))
    assert outcome.kind is OutcomeKind.UNKNOWN
    assert outcome.reason.startswith("unknown: this rank was away")
    assert one.ledger.told[0] == {(0, 0): 1.0}
