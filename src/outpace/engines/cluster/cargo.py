"""Which records go with data, and where it lies. Owns what a host must have before a record may be in its log."""

from __future__ import annotations

from typing import NamedTuple

from outpace.engines.arena.layout import ArenaLayout
from outpace.protocol.events import Finish, Publish, Snapshot, Swap, Sync
from outpace.protocol.hosts import is_addressed
from outpace.protocol.ledger import Ledger

AT_THE_END = 2
ROW, BUFFERS, SNAPSHOT = range(3)
WithData = Publish | Swap | Snapshot | Sync | Finish  #: events that data goes with


class Cargo(NamedTuple):
    """Data that goes with a record: whose, what, and where it goes in the memory of whoever gets it."""

    source: int  #: host
    what: int
    number: int  #: row, buffer row or snapshot buffer, at its source
    places: tuple[int, ...]  #: the same here

    @property
    def request(self) -> tuple[int, int]:
        """What its source is asked for."""
        return self.what, self.number


def cargo_of(event: WithData, ledger: Ledger, has_buffers: bool) -> Cargo | None:
    """What goes with a record that comes next after what the ledger knows. None if nothing does."""
    source = ledger.hosts.of[event.rank]
    if isinstance(event, Publish):
        row = ledger.published.next_row(event.rank)
        return Cargo(source, ROW, row, (row,))
    if isinstance(event, Swap):
        rows = ledger.published.shelves[event.rank].spares[:2]
        return Cargo(source, ROW, rows[0], tuple(rows))
    if isinstance(event, Snapshot):
        return Cargo(source, SNAPSHOT, event.buffer, (ledger.snapshots.free_buffer(-1),))
    if not has_buffers:
        return None
    parity = event.generation % 2 if isinstance(event, Sync) else AT_THE_END
    number = parity * len(ledger.hosts.of) + event.rank
    return Cargo(source, BUFFERS, number, (number,))


def is_for(host: int, event: WithData, ledger: Ledger) -> bool:
    """Whether a host gets the data of a record that comes next after what the ledger knows."""
    if host not in ledger.hosts.living or host == ledger.hosts.of[event.rank]:
        return False
    if isinstance(event, Snapshot):
        return host in ledger.without_snapshot()
    return not isinstance(event, Publish) or is_addressed(event.reader_hosts, host)


def current_rows(ledger: Ledger) -> list[Cargo]:
    """All published rows that ranks of other hosts may read: what a host that comes back has missed."""
    published = ledger.published
    rows = {place.row: rank for rank, shelf in published.shelves.items() for place in shelf.kept.values()}
    rows |= {shelf.current.row: rank for rank, shelf in published.shelves.items() if shelf.current is not None}
    of = ledger.hosts.of
    return [Cargo(of[rank], ROW, row, (row,)) for row, rank in sorted(rows.items()) if of[rank] != ledger.host]


def region(layout: ArenaLayout, what: int, number: int) -> tuple[int, int]:
    """(offset, bytes) in the arena. Of a snapshot, the most it can take."""
    if what == ROW:
        return layout.published(number), layout.published_bytes
    if what == BUFFERS:
        return layout.buffer_row(number // layout.world, number % layout.world), layout.buffer_bytes
    return layout.state(number), layout.state_bytes
