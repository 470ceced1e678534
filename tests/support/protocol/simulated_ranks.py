"""Simulated ranks that append what real ones would, in an order that a drawn list of choices decides.

A rank arrives with the version it has applied, in a free row; waits if it is on time; applies what is complete;
synchronises, finishes, dies and comes back. Slow observers append what is long decided, and anything may be repeated.
A choice that is not possible at its place is passed over, so that lists of choices shrink well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from outpace.protocol.events import (
    Arrive,
    Attempt,
    Away,
    Back,
    Dead,
    Done,
    Event,
    Finish,
    Join,
    Outcome,
    OutcomeKind,
    Refuse,
    Seal,
    Sync,
)
from outpace.protocol.ledger import Ledger
from outpace.protocol.rules import Rules

MICROSECOND = 1_000

#: What may be chosen, as often as it stands here; the simplest comes first.
ACTIONS = (
    *("go",) * 14,
    *("done",) * 6,
    *("seal", "restart", "notice", "repeat") * 2,
    *("sync", "attempt", "refuse", "overflow", "hold", "late", "die", "finish", "away", "back"),
)


class Choice(NamedTuple):
    """One thing that happens: what, to which rank, and a number that decides its details."""

    action: str
    rank: int
    number: int


class SimulatedRank:
    """One process and what it knows."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.incarnation = 0
        self.alive = False
        self.state = "computing"  #: or waiting, catching-up, syncing, finished
        self.version = 0
        self.step = 0
        self.target = 0  #: the round waited for, the version caught up with, or the generation synchronised in

    @property
    def life(self) -> tuple[int, int]:
        return self.rank, self.incarnation


class Run:
    """All ranks over one log. `on_event` sees every event after the ledger has taken it in."""

    def __init__(self, rules: Rules, on_event: Callable[[Event, Outcome], None] | None = None) -> None:
        self.ledger = Ledger(rules)
        self.ranks = [SimulatedRank(rank) for rank in range(rules.world)]
        self.log: list[Event] = []
        self.now_ns = 0
        self.resumed = False
        self._held: list[Event] = []
        self._on_event = on_event

    def append(self, event: Event) -> Outcome:
        event = event._replace(time_ns=self.now_ns)
        self.log.append(event)
        outcome = self.ledger.apply(event)
        if self._on_event is not None:
            self._on_event(event, outcome)
        return outcome

    def play(self, choice: Choice) -> None:
        """Does what is chosen, if it is possible now."""
        self.now_ns += choice.number * choice.number * MICROSECOND
        rank = self.ranks[choice.rank % len(self.ranks)]
        getattr(self, "_" + choice.action)(rank, choice.number)

    def complete_until(self) -> int:
        sealed = self.ledger.reducing
        return self.ledger.round if sealed is None else sealed.number

    # -- what a rank does ------------------------------------------------------------------------------------------

    def join(self, rank: SimulatedRank, behind: int = 0) -> None:
        """Comes to life, with a snapshot that is a few rounds old."""
        rank.alive, rank.state, rank.step = True, "computing", 0
        rank.incarnation += 1
        rank.version = max(self.ledger.sync.version, self.complete_until() - behind)
        self.append(Join(*rank.life))

    def _go(self, rank: SimulatedRank, number: int) -> None:
        """The next thing in a rank's life."""
        if not rank.alive:
            if rank.incarnation == 0:
                self.join(rank)
        elif self.ledger.started:
            {
                "computing": self._arrive,
                "waiting": self._wait,
                "catching-up": self._catch_up,
                "syncing": self._synchronised,
                "finished": self._apply_to_the_end,
            }[rank.state](rank, number)

    def _arrive(self, rank: SimulatedRank, number: int) -> None:
        row = self.ledger.free_row(rank.rank)
        if row is None:
            return
        open_round = self.ledger.round
        rank.step += 1
        outcome = self.append(Arrive(*rank.life, rank.step, rank.version, row, samples=float(number % 4)))
        assert not outcome.is_ignored, f"a well-behaved arrival was {outcome.reason}"
        waits = outcome.kind in (OutcomeKind.ON_TIME, OutcomeKind.COUNTED)
        rank.state = "waiting" if waits else "catching-up"
        rank.target = open_round if waits else self.ledger.round

    def _wait(self, rank: SimulatedRank, number: int) -> None:
        if self.complete_until() > rank.target:
            rank.state, rank.target = "catching-up", self.ledger.round
            self._catch_up(rank, number)

    def _catch_up(self, rank: SimulatedRank, number: int) -> None:
        if self.complete_until() >= rank.target:
            rank.version, rank.state = rank.target, "computing"

    def _synchronised(self, rank: SimulatedRank, number: int) -> None:
        if self.ledger.sync.generation > rank.target:
            assert rank.rank in self.ledger.sync.ranks
            rank.version, rank.state = self.ledger.sync.version, "computing"

    def _apply_to_the_end(self, rank: SimulatedRank, number: int) -> None:
        rank.version = max(rank.version, self.complete_until())

    def _sync(self, rank: SimulatedRank, number: int) -> None:
        if rank.alive and self.ledger.started and rank.state == "computing":
            resume = rank.version + number % 5 + 1 if number > 17 else 0
            self.resumed = self.resumed or bool(resume)
            rank.state, rank.target = "syncing", self.ledger.sync.generation
            self.append(Sync(*rank.life, rank.target, resume, unfinished=number % 4))

    def _finish(self, rank: SimulatedRank, number: int) -> None:
        if rank.alive and self.ledger.started and rank.state == "computing" and number < 7:  # seldom
            rank.state = "finished"
            self.append(Finish(*rank.life))

    def _away(self, rank: SimulatedRank, number: int) -> None:
        """It waits in another optimizer until it is back, or arrives here."""
        if rank.alive and self.ledger.started and rank.state == "computing":
            self.append(Away(*rank.life, optimizer=number % 2, is_at_end=number % 3 == 0))

    def _back(self, rank: SimulatedRank, number: int) -> None:
        self.append(Back(*rank.life))

    def _die(self, rank: SimulatedRank, number: int) -> None:
        rank.alive = False

    def _restart(self, rank: SimulatedRank, number: int) -> None:
        if rank.incarnation and not rank.alive:
            self.join(rank, behind=number % 3)

    # -- what any observer does ------------------------------------------------------------------------------------

    def _observe(self, event: Event | None) -> None:
        if event is not None:
            self.append(event)

    def _seal(self, rank: SimulatedRank, number: int) -> None:
        self._observe(self._seal_event(rank))

    def _notice(self, rank: SimulatedRank, number: int) -> None:
        self._observe(self._death_event(rank))

    def _done(self, rank: SimulatedRank, number: int, void: bool = False) -> None:
        sealed = self.ledger.reducing
        if sealed is not None:
            self._observe(Done(0, sealed.number, sealed.attempt, sealed.slot, void=void))

    def _overflow(self, rank: SimulatedRank, number: int) -> None:
        self._done(rank, number, void=True)

    def _attempt(self, rank: SimulatedRank, number: int) -> None:
        self._observe(self._attempt_event(number))

    def _refuse(self, rank: SimulatedRank, number: int) -> None:
        self._observe(self._refusal_event(number))

    def _seal_event(self, rank: SimulatedRank) -> Event | None:
        due = self.ledger.deadline_ns
        if due is None:
            return None
        self.now_ns = max(self.now_ns, due)
        return Seal(self.ledger.round)

    def _death_event(self, rank: SimulatedRank) -> Event | None:
        return Dead(*rank.life) if rank.incarnation and not rank.alive else None

    def _attempt_event(self, number: int) -> Event | None:
        sealed, free = self.ledger.reducing, self.ledger.free_slots()
        if sealed is None:
            return None
        place = free[number % len(free)]
        return Attempt(sealed.number, sealed.attempt + 1, place)

    def _refusal_event(self, number: int) -> Event | None:
        sealed = self.ledger.reducing
        if sealed is None:
            return None
        bad = sealed.contributions[number % len(sealed.contributions)]
        return Refuse(bad.rank, bad.incarnation, bad.step, sealed.number)

    def _repeat(self, rank: SimulatedRank, number: int) -> None:
        """An event of the recent past is appended again."""
        if self.log:
            self._observe(self.log[-1 - number % len(self.log)])

    def _hold(self, rank: SimulatedRank, number: int) -> None:
        """An observer decides to append something, and is stopped before it does."""
        makers = [
            lambda: self._seal_event(rank),
            lambda: self._death_event(rank),
            lambda: self._attempt_event(number),
            lambda: self._refusal_event(number),
        ]
        event = makers[number % 4]()
        if event is not None:
            self._held.append(event)

    def _late(self, rank: SimulatedRank, number: int) -> None:
        """The stopped observer wakes up."""
        if self._held:
            self._observe(self._held.pop(number % len(self._held)))

    # -- liveness --------------------------------------------------------------------------------------------------

    def go_on_fairly(self, steps: int, turns: int = 200) -> bool:
        """All living ranks take turns for a few more steps and finish; observers do their part. True at the end."""
        for rank in self.ranks:
            if rank.incarnation == 0:
                self.join(rank)
        last = {rank.rank: rank.step + steps for rank in self.ranks}
        for _ in range(turns):
            for rank in self.ranks:
                self._notice(rank, 0)
                if rank.state == "computing" and rank.step >= last[rank.rank]:
                    self._finish(rank, 0)
                self._go(rank, 1)
                self._seal(rank, 0)
                self._done(rank, 0)
                self.now_ns += MICROSECOND
            if self.ledger.below_quorum or self._is_over():
                return True
        return False

    def _is_over(self) -> bool:
        living = [rank for rank in self.ranks if rank.alive]
        at_end = all(rank.state == "finished" and rank.version == self.ledger.round for rank in living)
        return self.ledger.ended and at_end
