"""The log that all hosts share: how what each host says gets into it once and in order, whoever stops, dies or returns.

Every host has an inbox, which only grows. A *batch* is the next piece of one, and an *entry* of the log is a few
batches, of one host or of several. Entries are numbered and written by compare-and-set, so that of two hosts that write
the same number the first one wins and the other takes in what it found. Whoever writes number n has read all entries
before n and knows how much of every inbox they have, so a batch that begins elsewhere is not written again.

That alone makes the log right: any host may write at any time. One host writes for all only so that nobody races. A
host sends its batch to the *leader*, the first host of the group. If the batch is not in the log for a while, the host
sends it to the next one in order, and may come to itself. Two leaders cost an attempt and lose nothing. Whoever has
written an entry passes it on down a tree, so that the store is not asked by all; who gets none asks the store.

Owns these decisions, as pure functions of what was read and of a clock that is an argument. Knows no store and no wire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from outpace.protocol.hosts import Hosts

FEW_HOSTS = 2  #: among so many, each writes for itself and reads the store: that takes the fewest hops
FAN_OUT = 8  #: hosts that one host passes an entry on to
RETURN_AFTER = 8  #: patiences after which a leader that did not answer is tried again


def children(root: int, place: int, count: int) -> list[int]:
    """To which places of a group one passes on the entries that a root has written.

    >>> children(2, 2, 5), children(0, 1, 20)
    ([3, 4, 0, 1], [9, 10, 11, 12, 13, 14, 15, 16])
    """
    before = (place - root) % count * FAN_OUT
    return [(root + child) % count for child in range(before + 1, min(count, before + FAN_OUT + 1))]


class Batch(NamedTuple):
    """The next piece of a host's inbox. Positions count bytes."""

    host: int
    life: int  #: sequence number of the host's start: each has an inbox of its own
    start: int
    records: bytes

    @property
    def end(self) -> int:
        return self.start + len(self.records)

    def beyond(self, position: int) -> Batch | None:
        """What of it lies behind a position. None if that is nothing, or something before it is missing."""
        if not self.start <= position < self.end:
            return None
        return self._replace(start=position, records=self.records[position - self.start :])


class Forward(NamedTuple):
    """Another host is to write this."""

    host: int
    batch: Batch


class Write(NamedTuple):
    """To be the next entry, if nobody else is first."""

    batches: tuple[Batch, ...]


class LogWriter:
    """What one agent does with its host's inbox and with the batches that others send to it."""

    def __init__(self, host: int, life: int, hosts: Hosts, patience_s: float, most_bytes: int) -> None:
        self._me, self._life = host, life
        self._hosts = hosts  # as all entries so far make them
        self._patience_s, self._most_bytes = patience_s, most_bytes
        self._group: tuple[int, ...] = ()
        self._offered: dict[int, list[Batch]] = {}
        self._turn, self._turned = 0, 0.0  # which host of the group leads as far as this one is concerned, since when
        self._sent, self._committed, self._since = 0, -1, 0.0  # up to where; what was there last, and since when

    @property
    def leader(self) -> int:
        return self._group[self._turn] if self._group else self._me

    def regroup(self, hosts: Sequence[int]) -> None:
        """These hosts can be sent to from now on. None: each writes for itself. What was under way may be lost."""
        self._group, self._turn, self._sent = tuple(hosts), 0, 0

    def offer(self, batch: Batch) -> None:
        """Another host asks this one to write a batch."""
        self._offered.setdefault(batch.host, []).append(batch)

    def next(self, inbox: Callable[[int], bytes], now: float) -> Forward | Write | None:
        """What to do now. `inbox` reads what lies in this host's from a position on."""
        committed = self._hosts.committed_of(self._me, self._life)
        if committed is None:
            return None  # this host was started again: it is for another agent to say what it says
        if committed != self._committed:
            self._committed, self._since = committed, now
        if self._turn and now - self._turned > RETURN_AFTER * self._patience_s:
            self._turn = 0
        if self.leader != self._me and (forward := self._forward(inbox, max(committed, self._sent), now)):
            return forward
        return self._write(inbox, committed)

    def _forward(self, inbox: Callable[[int], bytes], start: int, now: float) -> Forward | None:
        records = inbox(start)
        if records:
            self._since = now if self._sent <= self._committed else self._since
            self._sent = start + len(records)
            return Forward(self.leader, Batch(self._me, self._life, start, records))
        if self._sent > self._committed and now - self._since > self._patience_s:
            self._turn, self._turned = self._turn + 1, now  # ends at this host itself, which is in the group
            self._sent, self._since = 0, now
        return None

    def _write(self, inbox: Callable[[int], bytes], committed: int) -> Write | None:
        offered = list(self._continuing())
        if self.leader != self._me and not offered:
            return None
        records = inbox(committed)
        mine = [Batch(self._me, self._life, committed, records)] if records else []
        taken: list[Batch] = []
        room = self._most_bytes
        for batch in mine + offered:
            room -= len(batch.records)
            if room < 0 and taken:
                break
            taken.append(batch)
        return Write(tuple(taken)) if taken else None

    def _continuing(self) -> Iterator[Batch]:
        """Of what others have sent, all that continues what is in the log. Forgets what is there already."""
        for host, batches in list(self._offered.items()):
            life = max(batch.life for batch in batches)
            position = self._hosts.committed_of(host, life)
            left = sorted(b for b in batches if position is not None and b.life == life and b.end > position)
            self._offered[host] = left
            if not left or position is None:
                del self._offered[host]
                continue
            for batch in left:
                if (rest := batch.beyond(position)) is not None:
                    position = rest.end
                    yield rest
