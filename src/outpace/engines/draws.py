"""What one rank draws from the pool of data, and how much of it is in its contributions. Who gets what is the ledger's.

Where what a rank says is in the log at once, it draws when it needs something. Where it takes a while, it draws ahead:
it works on one part while the next is on its way, and waits only at the beginning of an epoch. If it ever had to wait
in between, it keeps more in hand from then on. Whoever comes back within a moment draws more at once: all ranks read
every draw, and where steps are that short, this would cost more than the steps.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from outpace.errors import OutpaceError
from outpace.protocol.events import Draw, Skip
from outpace.protocol.pool import Hand, Range, Share

if TYPE_CHECKING:
    from outpace.engines.engine import Engine

log = logging.getLogger("outpace")

AHEAD = 2  #: draws kept in hand or on their way, where they come through an agent
MOST_AHEAD = 32
QUICK_S = 0.001  #: for a batch: whoever draws again so soon, again and again, draws more at once
OFTEN = 32  #: batches in a row; fewer may be a loader that prefetches
MOST_AT_ONCE = 16  #: batches
FAIR = 4  #: of what is left, nobody takes more at once than an even share divided by this


class Source(NamedTuple):
    """An epoch of a pool, as one rank knows it. The others must know the same."""

    pool: int
    epoch: int
    total: int  #: items
    digest: int  #: of all that makes their order


@dataclass
class Course:
    """One pass through an epoch."""

    source: Source
    batch: int  #: items in one
    batches: int  #: in a step of a plain loop
    first: int  #: which of this rank's draws began it
    has_begun: bool = False  #: something of it is here
    is_over: bool = False  #: nothing of it was left
    steps: int = 0
    excess: int = 0  #: items that steps stood for and that were not drawn


class Draws:
    def __init__(self, engine: Engine) -> None:
        self._engine, self._log = engine, engine.log
        self.covered = 0  #: the first so many items of those drawn are in this rank's steps
        self._taken = 0  # items given to the loop, or to whoever prepares them for it
        self._orphans = 0  # items drawn in a life that the others gave up, and others may draw again
        self._sizes: deque[float] = deque()  # of items taken that are in no step
        self._asked, self._asked_s = 0, 0.0  # draws that were said, and when the last was
        self._at_once = 1  # batches in the last draw
        self._quick = 0  # batches in a row that were soon used up
        self._life = 0
        self._is_warned = False
        self._pools = 0
        self._course: Course | None = None
        self.is_drawing = False  #: what this rank computes is from a pool
        self._met = -1  # what was covered when all ranks last met
        self._speed = 0.0  # items that it computes in a second: in this pass, or else in the last; 0 if unknown
        self._counted_s = 0.0  # the time until then is counted, or was before this pass
        self._computed, self._computed_s = 0, 0.0  # in this pass
        self._ahead = AHEAD if engine.ledger.hosts.count > 1 else 0

    @property
    def uncovered(self) -> int:
        """Items taken that are in no step yet."""
        return self._taken - self.covered + self._orphans

    def new_pool(self) -> int:
        """The number of another pool. Equal on all ranks that open theirs in the same order."""
        self._pools += 1
        return self._pools - 1

    def latest_of_next_pool(self) -> int:
        """The epoch that others draw from in the pool that this rank would open next; 0 if nobody does."""
        self._log.look()
        return self._engine.ledger.pool.latest.get(self._pools, 0)

    # -- what steps are made of ------------------------------------------------------------------------------------

    def note_sizes(self, sizes: Iterable[float]) -> None:
        """Of the items that were just taken: what they count as samples."""
        self._sizes.extend(sizes)

    def step(self, batches: int | None = None) -> float | None:
        """A step has used so many batches, in the order they came: those of a plain loop unless told otherwise.

        Returns how many samples these were, None if they are not from the pool.
        """
        course = self._course
        if course is None:
            return None
        items = course.batch * (course.batches if batches is None else batches)
        orphans = max(0, min(self._orphans, items))
        self._orphans -= orphans
        covered = self.covered + items - orphans
        self.covered = max(0, min(covered, self._taken))
        course.steps += 1
        course.excess += covered - self.covered
        self._measure(items)
        sizes = self._sizes
        return sum(sizes.popleft() for _ in range(min(items, len(sizes)))) or None

    def _measure(self, items: int) -> None:
        """This rank's speed, now that it has computed these."""
        now_s = self._log.now_s()
        if self._engine.began_s:
            self._computed += items
            self._computed_s += now_s - max(self._engine.began_s, self._counted_s)
            self._speed = self._computed / self._computed_s if self._computed_s > 0 else 0.0
        self._counted_s = now_s

    def speeds(self) -> dict[int, float]:
        """Rank -> items that it computes in a second, of those that have told."""
        own = {self._engine.rank: self._speed} if self._speed else {}
        return self._engine.ledger.pool.speeds | own

    def met(self) -> None:
        """All ranks are at one version, and have seen what is left of the data."""
        self._met = self.covered

    def left(self, pool: int) -> dict[int, list[Range]]:
        """Epoch -> items of it that are in no step: when all last met, if this rank did nothing since, else now."""
        self._log.look()
        found = self._engine.ledger.pool
        if self._met == self.covered:
            return {epoch: ranges for (its, epoch), ranges in found.left_at_sync.items() if its == pool}
        return {epoch: found.left(pool, epoch) for its, epoch in found.known() if its == pool}

    # -- drawing ---------------------------------------------------------------------------------------------------

    def begin(self, source: Source, batch: int, batches: int) -> Course:
        """Another pass through an epoch begins. What was taken in one that was broken off, and is in no step, is given
        back; one that came to its end gave all of it to the loop."""
        self._counted_s, self._computed, self._computed_s = self._log.now_s(), 0, 0.0
        self._notice_life()
        self._give_back(source)
        self._course = Course(source, batch, batches, self._asked)
        self.is_drawing = True
        return self._course

    def give_back(self) -> None:
        """This rank makes no more steps. What others can still draw must not be lost with it."""
        if self._asked and self._life == self._log.incarnation:
            self._give_back(Source(0, 0, 0, 0))
            self._course = None
            self.is_drawing = False

    def skip(self, source: Source, done: Iterable[Range]) -> None:
        """These items were trained on before the run began."""
        for start, stop in done:
            self._log.append(Skip(*source, start, stop))

    async def next(self, course: Course, count: int) -> list[Share]:
        """The next items of an epoch, at most `count`; none when all are drawn. Waits only for the log."""
        if course is not self._course:
            raise OutpaceError(
                f"[rank {self._engine.rank}] this epoch's data were drawn up to here when another SharedSampler was "
                "begun, and what was drawn and not trained was given back to the other ranks. End one loop before you "
                "begin the next; to train on two sets at once, draw from one (torch.utils.data.ConcatDataset)"
            )
        if self._ahead:
            self._log.look()
        while not course.is_over:
            if self._life != self._log.incarnation:
                self._notice_life()
                course.first, course.has_begun = 0, False
            hand, unseen = self._hand(course)
            if not hand.is_dry:
                self._ask(course, count, unseen + (self._asked - hand.draws) * count)
                hand, unseen = self._hand(course)
            if unseen > 0:
                course.has_begun = True
                return self._take(hand, min(unseen, count))
            if self._asked > hand.draws:
                await self._wait(course, hand.draws)
            elif hand.is_dry and self._log.report_deaths():
                self._say(course.source, count)  # what they held can be drawn now
            else:
                course.is_over = hand.is_dry
        return []

    def _hand(self, course: Course) -> tuple[Hand, int]:
        """What this rank holds, and how many items of it were not taken yet: none before the pass has begun."""
        hand = self._engine.ledger.pool.hands.get(self._engine.rank)
        if hand is None or hand.draws < course.first:
            return Hand(0 if hand is None else hand.draws), 0
        return hand, hand.drawn - self._taken

    def _ask(self, course: Course, count: int, coming: int) -> None:
        """Keeps so much in hand, or on its way, that this rank need not wait."""
        is_owned = count > course.batch  # a whole share, whoever would be faster
        if coming < 1 and not self._ahead and not is_owned:
            self._say(course.source, count * self._batches_at_once(course))
            return
        for _ in range(coming, max(1, self._ahead * course.batch), count):
            self._say(course.source, count, speed=0.0 if is_owned else None)

    def _batches_at_once(self, course: Course) -> int:
        now_s = self._log.now_s()
        self._quick = (
            self._quick + self._at_once if now_s - self._asked_s < QUICK_S * self._at_once else self._quick // 2
        )
        self._asked_s = now_s
        if self._quick < 2 * OFTEN:
            self._at_once = 1
        else:
            fresh = self._engine.ledger.pool.fresh(course.source.pool, course.source.epoch)
            fair = fresh // (FAIR * course.batch * self._engine.world)
            self._at_once = max(1, min(self._quick // OFTEN, fair, MOST_AT_ONCE))
        return self._at_once

    def _say(self, source: Source, count: int, kept: int = -1, speed: float | None = None) -> None:
        self._asked += 1
        speed = self._speed if speed is None else speed
        self._log.say(Draw(self._engine.rank, self._log.incarnation, *source, count, kept, speed))

    def _give_back(self, source: Source) -> None:
        if self._course is not None and self._course.is_over:
            self._check_steps(self._course)
            self.covered = self._taken
        self._say(source, 0, kept=self.covered)
        self._taken, self._orphans = self.covered, 0
        self._sizes.clear()

    def _check_steps(self, course: Course) -> None:
        """One step more or less is the end of an epoch, or of a stream. If more are missing, a step does not stand for
        what it was computed of. Whoever only looks at the data makes none."""
        off = self.uncovered - course.excess
        if abs(off) <= course.batch * course.batches or not course.steps or self._is_warned:
            return
        self._is_warned = True
        log.warning(
            "[rank %d] the steps of this epoch stand for %d items %s than were drawn: training goes on, but if this "
            "rank dies, %s. The loader's batch_size must be the sampler's, and batches_per_step how many batches make "
            "one step()",
            *(self._engine.rank, abs(off), "fewer" if off > 0 else "more"),
            "some of its samples are trained twice" if off > 0 else "some of its samples are lost",
        )

    def _take(self, hand: Hand, count: int) -> list[Share]:
        found = hand.since(self._taken, count)
        self._taken += count
        return found

    async def _wait(self, course: Course, draws: int) -> None:
        """For the next draw to be in the log."""
        rank, life = self._engine.rank, self._log.incarnation

        def is_answered() -> bool:
            hand = self._engine.ledger.pool.hands.get(rank)
            return self._log.incarnation != life or (hand is not None and hand.draws > draws)

        if course.has_begun:
            self._ahead = min(2 * self._ahead, MOST_AHEAD)
        await self._engine.until(is_answered, "for its next part of the data to be drawn")

    def _notice_life(self) -> None:
        """In a new life this rank holds nothing; what it had taken before is computed all the same."""
        if self._life != self._log.incarnation:
            self._life = self._log.incarnation
            self._orphans = self.uncovered
            self._taken = self.covered = self._asked = 0
