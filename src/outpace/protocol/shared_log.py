"""The log that all hosts share: how each host's events get into it once and in order, whichever host stops or returns.

Every host has an inbox, which only grows. A *batch* is the next piece of one, and an *entry* of the log is a few
batches, of one host or of several. Entries are numbered and written by compare-and-set: if two hosts write the same
number, the first one wins and the other reads what it wrote. The writer of entry n has read all entries before n, so it
knows how much of every inbox they contain, and writes no batch twice.

That alone makes the log correct: any host may write at any time. Only to avoid races does one host write for all: the
*leader*, the first host of the group. Batches go up a tree of hosts to it, and its entries come down the same tree, so
that neither the store nor any host has to answer all others. A host has one message to its parent under way at a time;
what it says meanwhile goes into the next. So the leader gets one message per child, however many hosts there are. If a
batch does not get into the log for a while, its host sends it to the leader directly, then to the next host in order,
and at last writes it itself. Two leaders cost an attempt and lose nothing. A host that gets no entry asks the store.

Owns these decisions, as pure functions of what was read and of the time, an argument. Knows no store and no wire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from outpace.protocol.hosts import Hosts

FAN_OUT = 8  #: to how many hosts each host passes an entry on
RETURN_AFTER = 8  #: patiences after which an unresponsive leader is tried again


def children(root: int, place: int, count: int) -> list[int]:
    """The places of a group to which `place` passes on the entries written by `root`.

    >>> children(2, 2, 5), children(0, 1, 20)
    ([3, 4, 0, 1], [9, 10, 11, 12, 13, 14, 15, 16])
    """
    before = (place - root) % count * FAN_OUT
    return [(root + child) % count for child in range(before + 1, min(count, before + FAN_OUT + 1))]


def parent(root: int, place: int, count: int) -> int:
    """The place from which `place` gets the entries written by `root`.

    >>> [parent(0, place, 20) for place in (1, 8, 9, 19)]
    [0, 0, 1, 2]
    """
    return (root + ((place - root) % count - 1) // FAN_OUT) % count


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
        """The rest of it after a position. None if there is none, or if something between is missing."""
        if not self.start <= position < self.end:
            return None
        return self._replace(start=position, records=self.records[position - self.start :])


class Forward(NamedTuple):
    """To be sent to another host, for it to write or to pass on toward the leader."""

    host: int
    leader: int
    batches: tuple[Batch, ...]


class Write(NamedTuple):
    """To be written as the next entry, unless another host is first."""

    batches: tuple[Batch, ...]


class Route(NamedTuple):
    """How to get a batch written: sent to `hop`, for `leader` to write it."""

    hop: int
    leader: int


def routes(host: int, group: Sequence[int]) -> list[Route]:
    """The routes a host tries, in order: up the tree, then each host before it directly, and at last itself.

    >>> [tuple(route) for route in routes(2, [0, 1, 2])], [tuple(route) for route in routes(19, range(20))[:3]]
    ([(0, 0), (1, 1), (2, 2)], [(2, 0), (0, 0), (1, 1)])
    """
    before = [*group[: list(group).index(host)], host] if group else [host]
    direct = [Route(other, other) for other in before]
    if before[0] == host:
        return direct
    first = Route(group[parent(0, len(before) - 1, len(group))], group[0])
    return list(dict.fromkeys([first, *direct]))


class LogWriter:
    """Decides what one agent does with its host's inbox, and with the batches that other hosts send to it."""

    def __init__(self, host: int, life: int, hosts: Hosts, patience_s: float, most_bytes: int) -> None:
        self._me, self._life = host, life
        self._hosts = hosts  # by all entries so far
        self._patience_s, self._most_bytes = patience_s, most_bytes
        self._routes, self._is_tree = routes(host, ()), False
        self._turn, self._turned = 0, 0.0  # the current one of them, and since when
        self._offered: dict[int, list[Batch]] = {}  # for this host to write
        self._passed: list[Batch] = []  # for this host to pass on
        self._sent = 0  # how much of the inbox
        self._under_way: dict[tuple[int, int], int] = {}  # (host, life) -> how much of its inbox was sent
        self._committed, self._since = -1, 0.0  # of the inbox; when batches under way last progressed or were sent

    @property
    def leader(self) -> int:
        return self._route.leader

    @property
    def _route(self) -> Route:
        return self._routes[self._turn]

    def regroup(self, hosts: Sequence[int]) -> None:
        """From now on, messages can be sent to these hosts; without any, each host writes for itself. What was under
        way may be lost."""
        self._routes, self._is_tree = routes(self._me, hosts), len(hosts) > FAN_OUT + 1
        self._turn = 0
        self._forget_sent()

    def offer(self, batch: Batch, leader: int) -> None:
        """Another host asks this one to write a batch, or to pass it on to the leader."""
        if leader == self._me:
            self._offered.setdefault(batch.host, []).append(batch)
        else:
            self._passed.append(batch)

    def next(self, inbox: Callable[[int], bytes], now: float) -> Forward | Write | None:
        """What to do now. `inbox` reads this host's inbox from a position on."""
        committed = self._hosts.committed_of(self._me, self._life)
        if committed is None:
            return None  # this host was restarted: another agent speaks for it
        if self._turn and now - self._turned > RETURN_AFTER * self._patience_s:
            self._turn = 0
        self._look_after_sent(committed, now)
        if self._route.hop == self._me:
            for batch in self._passed:
                self.offer(batch, self._me)
            self._passed = []
        elif forward := self._forward(inbox, max(committed, self._sent), now):
            return forward
        return self._write(inbox, committed)

    def _look_after_sent(self, committed: int, now: float) -> None:
        """Forgets what has reached the log, and switches to the next route if the rest takes too long."""
        left = {which: end for which, end in self._under_way.items() if self._is_missing(*which, end)}
        if len(left) < len(self._under_way) or committed != self._committed:
            self._since = now
        self._under_way, self._committed = left, committed
        if left and now - self._since > self._patience_s:
            self._turn, self._turned = min(self._turn + 1, len(self._routes) - 1), now
            self._forget_sent()

    def _forget_sent(self) -> None:
        """Other hosts' batches, too: those hosts send again what does not get into the log."""
        self._sent = 0
        self._under_way = {}

    def _is_missing(self, host: int, life: int, end: int) -> bool:
        committed = self._hosts.committed_of(host, life)
        return committed is not None and committed < end

    def _forward(self, inbox: Callable[[int], bytes], start: int, now: float) -> Forward | None:
        if self._is_tree and self._under_way:
            return None
        records = inbox(start)
        mine = [Batch(self._me, self._life, start, records)] if records else []
        passed = [batch for batch in self._passed if self._is_missing(batch.host, batch.life, batch.end)]
        taken = self._fitting(mine + passed)
        self._passed = passed[len(taken) - len(mine) :]
        if not taken:
            return None
        if not self._under_way:
            self._since = now
        self._sent = start + len(records)
        self._under_way |= {(batch.host, batch.life): batch.end for batch in taken}
        return Forward(*self._route, taken)

    def _write(self, inbox: Callable[[int], bytes], committed: int) -> Write | None:
        offered = list(self._continuing())
        if self._route.hop != self._me and not offered:
            return None
        records = inbox(committed)
        mine = [Batch(self._me, self._life, committed, records)] if records else []
        taken = self._fitting(mine + offered)
        return Write(taken) if taken else None

    def _fitting(self, batches: list[Batch]) -> tuple[Batch, ...]:
        """As many batches as one entry has room for, at least one."""
        room, taken = self._most_bytes, 0
        for batch in batches:
            room -= len(batch.records)
            if room < 0 and taken:
                break
            taken += 1
        return tuple(batches[:taken])

    def _continuing(self) -> Iterator[Batch]:
        """Those batches of other hosts that continue what is in the log. Forgets what is in it already."""
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
