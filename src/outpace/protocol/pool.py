"""The pool of data that all ranks draw from: who holds which items of an epoch, and which are still to be drawn.

An item is known by its place in the epoch's order alone: a sample or a whole batch, as the sampler says. Each is drawn
once. What a rank had drawn when it died, and had not contributed, is drawn again by others; so is what it gives back.

Towards the end of an epoch a rank gets nothing that the others are expected to have computed before it could: else all
would wait for the last item of the slowest. If one of them dies then, what they were left with is drawn by anybody.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from outpace.protocol.events import Draw, Outcome, Skip, ignored, taken
from outpace.protocol.round import Contribution
from outpace.protocol.state import Part

DRAWN = taken("drawn")
LEFT = taken("left to ranks that are done with it sooner")
Range = tuple[int, int]  #: of items: the first, and the one after the last


class Share(NamedTuple):
    """Items of one epoch that follow each other."""

    pool: int
    epoch: int
    start: int
    stop: int


class Given(NamedTuple):
    """Items that are in a contribution whose round is not complete."""

    rank: int
    incarnation: int
    step: int
    share: Share


@dataclass
class Epoch:
    total: int
    digest: int  #: of everything that makes its order
    fresh: list[Range]  #: never drawn
    was_left: bool = False  #: somebody's loop has ended before it was drawn to its end

    @property
    def fresh_items(self) -> int:
        return sum(stop - start for start, stop in self.fresh)


@dataclass
class Hand:
    """What a rank's incarnation has drawn."""

    draws: int = 0  #: how often it has drawn
    drawn: int = 0  #: items, ever
    covered: int = 0  #: the first so many of them are in its contributions
    is_dry: bool = False  #: it asked for more than there was for it
    shares: list[Share] = field(default_factory=list)  #: the others, in the order they were drawn
    at: tuple[int, int] = (0, 0)  #: the pool and epoch that it last drew from

    def since(self, seen: int, count: int) -> list[Share]:
        """So many of the items that it has drawn after the first `seen`. Those are the last ones: few, of many."""
        unseen, place = self.drawn - seen, len(self.shares)
        while unseen > 0:
            place -= 1
            share = self.shares[place]
            unseen -= share.stop - share.start
        if unseen == 0 and place == len(self.shares) - 1 and share.stop - share.start <= count:
            return [share]
        return _first(_from(self.shares[place:], -unseen), count)


class Pool(Part):
    epochs: dict[tuple[int, int], Epoch]  #: by pool and number: those with items never drawn, and the latest
    latest: dict[int, int]  #: pool -> the latest epoch that was drawn from
    returned: list[Share]  #: drawn by ranks that did not contribute them; in order
    hands: dict[int, Hand]  #: by rank
    given: list[Given]  #: kept only where a whole host can be lost with what it contributed
    speeds: dict[int, float]  #: items that a rank computes in a second, as it measured them itself
    left_at_sync: dict[tuple[int, int], list[Range]]  #: as the last synchronisation found it

    def __init__(self, hosts: int = 1) -> None:
        self._can_lose_hosts = hosts > 1
        self.epochs, self.latest, self.hands, self.speeds = {}, {}, {}, {}
        self.returned, self.given, self.left_at_sync = [], [], {}
        self.changes = 0

    # -- drawing ---------------------------------------------------------------------------------------------------

    def draw(self, event: Draw) -> Outcome:
        """Hands out the next items; none of an epoch that is drawn. Never more than one rank has an item."""
        rank, _, pool, number, _, _, count, kept, speed, _ = event
        hand = self.hands.get(rank)
        if hand is None:
            hand = self.hands[rank] = Hand()
        hand.draws += 1
        self.changes += 1
        if speed:
            self.speeds[rank] = speed
        if kept >= 0 and hand.shares:
            self._give_back(hand, kept - hand.covered)
        epoch = self._open(event)
        if epoch is not None and (epoch.total, epoch.digest) != (event.total, event.digest):
            hand.is_dry = True
            return ignored("its data are not those that the others draw from")
        hand.at = pool, number
        if count and speed and self._should_leave_it(rank, hand, count, epoch):
            if epoch is not None:
                epoch.was_left = True
            hand.is_dry = True
            return LEFT
        while count:
            share = self._next(pool, number, epoch, count)
            if share is None:
                break
            hand.shares.append(share)
            hand.drawn += share.stop - share.start
            count -= share.stop - share.start
        hand.is_dry = count > 0
        return DRAWN

    def skip(self, event: Skip) -> Outcome:
        """These items were trained on before this run began."""
        epoch = self._open(event)
        if epoch is None or (epoch.total, epoch.digest) != (event.total, event.digest):
            return ignored("that epoch is over, or has other data")
        epoch.fresh = list(_without(epoch.fresh, event.start, event.stop))
        return taken(f"items {event.start} to {event.stop} of epoch {event.epoch} are not drawn again")

    def _open(self, event: Draw | Skip) -> Epoch | None:
        """The epoch of an event, opened if it is new. None if it is over, and nobody drew from it for long."""
        key = pool, number = event.pool, event.epoch
        epoch = self.epochs.get(key)
        if epoch is not None or number <= self.latest.get(pool, -1):
            return epoch
        self.epochs = {k: e for k, e in self.epochs.items() if e.fresh or k[0] != pool or k[1] >= number - 1}
        self.latest[pool] = number
        epoch = self.epochs[key] = Epoch(event.total, event.digest, [(0, event.total)] if event.total else [])
        return epoch

    def _next(self, pool: int, number: int, epoch: Epoch | None, most: int) -> Share | None:
        """What others gave back comes first, of earlier epochs, too: else it would be lost."""
        for place, share in enumerate(self.returned):
            if share.pool == pool and share.epoch <= number:
                stop = min(share.stop, share.start + most)
                if stop == share.stop:
                    del self.returned[place]
                else:
                    self.returned[place] = share._replace(start=stop)
                return share._replace(stop=stop)
        if epoch is None or not epoch.fresh:
            return None
        start, end = epoch.fresh[0]
        stop = min(end, start + most)
        if stop == end:
            del epoch.fresh[0]
        else:
            epoch.fresh[0] = (stop, end)
        return Share(pool, number, start, stop)

    def _should_leave_it(self, rank: int, hand: Hand, count: int, epoch: Epoch | None) -> bool:
        """Whether the others can compute all that is left before this rank has computed what it asks for."""
        speeds, speed = self.speeds, self.speeds[rank]
        left = 0 if epoch is None else epoch.fresh_items
        in_hand = hand.drawn - hand.covered + count
        if left * speed > in_hand * sum(speeds.values()):  # in most draws there is much more
            return False
        pool, number = hand.at
        left += sum(s.stop - s.start for s in self.returned if s.pool == pool and s.epoch <= number)
        done_s = in_hand / speed
        others = [(r, h) for r, h in self.hands.items() if r != rank and h.at == hand.at and not h.is_dry]
        return 0 < left <= sum(_whole_draws(done_s * speeds.get(r, 0.0), h, count) for r, h in others)

    # -- what becomes of it ----------------------------------------------------------------------------------------

    def cover(self, rank: int, incarnation: int, step: int, covered: int) -> None:
        """The first so many items of all that a rank has drawn are in its contributions now."""
        hand = self.hands.get(rank)
        if hand is None:
            return
        todo = min(covered, hand.drawn) - hand.covered
        if todo <= 0:
            return
        if self._can_lose_hosts:
            self.given += [Given(rank, incarnation, step, share) for share in _first(hand.shares, todo)]
        hand.shares = _from(hand.shares, todo)
        hand.covered += todo

    def settle(self, contributions: Iterable[Contribution]) -> None:
        """The round of these is complete."""
        if self.given:
            self._take_from_given(contributions)

    def lose(self, contributions: Iterable[Contribution]) -> None:
        """These are in no round after all."""
        if self.given:
            self._return(self._take_from_given(contributions))

    def leave(self, rank: int) -> None:
        """A rank's incarnation is over: what it had not contributed is drawn by others."""
        hand = self.hands.pop(rank, None)
        if hand is not None:
            self._return(hand.shares)
            self._return_what_was_left()

    def finish(self, rank: int) -> None:
        """A rank has no more steps to make, and has given back what it does not stand for."""
        self.hands.pop(rank, None)

    def _return_what_was_left(self) -> None:
        """To whoever comes, also in a later epoch: those whom it was left to may be gone."""
        for (pool, number), epoch in self.epochs.items():
            if epoch.was_left and epoch.fresh:
                self._return(Share(pool, number, *part) for part in epoch.fresh)
                epoch.fresh = []

    def _give_back(self, hand: Hand, kept: int) -> None:
        """All but the first `kept` of the items that it holds."""
        back = _from(hand.shares, kept)
        hand.shares = _first(hand.shares, kept)
        hand.drawn -= sum(share.stop - share.start for share in back)
        self._return(back)

    def _return(self, shares: Iterable[Share]) -> None:
        self.returned = sorted([*self.returned, *shares])

    def _take_from_given(self, contributions: Iterable[Contribution]) -> list[Share]:
        steps = {
            (c.rank, c.incarnation, step) for c in contributions for step in range(c.step - c.pieces + 1, c.step + 1)
        }
        found = [given.share for given in self.given if given[:3] in steps]
        self.given = [given for given in self.given if given[:3] not in steps]
        return found

    # -- questions -------------------------------------------------------------------------------------------------

    def fresh(self, pool: int, number: int) -> int:
        """How many items of an epoch nobody has drawn."""
        epoch = self.epochs.get((pool, number))
        return 0 if epoch is None else epoch.fresh_items

    def left(self, pool: int, number: int) -> list[Range]:
        """The items of an epoch that are in no contribution, in order, whoever holds them."""
        epoch = self.epochs.get((pool, number))
        held = [share for hand in self.hands.values() for share in hand.shares]
        shares = [*self.returned, *held, *(given.share for given in self.given)]
        ranges = [share[2:] for share in shares if share[:2] == (pool, number)]
        return _merged(sorted(ranges + (epoch.fresh if epoch is not None else [])))

    def synchronized(self) -> None:
        """All ranks are at one version: what is left now is what a checkpoint of that version goes on with."""
        self.left_at_sync = {(pool, number): self.left(pool, number) for pool, number in self.known()}

    def known(self) -> list[tuple[int, int]]:
        """Pools and epochs of which anything may be left, and the latest ones."""
        return sorted({*self.epochs, *(share[:2] for share in self.returned)})

    def differs(self, pool: int, number: int, total: int, digest: int) -> Epoch | None:
        """The data that others draw from, if they are other data."""
        epoch = self.epochs.get((pool, number))
        return epoch if epoch is not None and (epoch.total, epoch.digest) != (total, digest) else None


def _whole_draws(items: float, hand: Hand, count: int) -> int:
    """How much more than it has in hand a rank can compute that computes so many items. It draws `count` at a time, and
    is in the middle of one draw, as far as anybody knows."""
    busy_with = max(hand.drawn - hand.covered, count) - count / 2
    return max(0, int((items - busy_with) // count)) * count


def _first(shares: list[Share], items: int) -> list[Share]:
    found = []
    for share in shares:
        if items <= 0:
            break
        found.append(share._replace(stop=min(share.stop, share.start + items)))
        items -= share.stop - share.start
    return found


def _from(shares: list[Share], items: int) -> list[Share]:
    """Without the first so many items."""
    for place, share in enumerate(shares):
        size = share.stop - share.start
        if items < size:
            return [share._replace(start=share.start + max(0, items)), *shares[place + 1 :]]
        items -= size
    return []


def _without(ranges: list[Range], start: int, stop: int) -> Iterable[Range]:
    for first, end in ranges:
        if first < min(start, end):
            yield first, min(start, end)
        if max(stop, first) < end:
            yield max(stop, first), end


def _merged(ranges: list[Range]) -> list[Range]:
    found: list[Range] = []
    for start, stop in ranges:
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], stop)
        else:
            found.append((start, stop))
    return found
