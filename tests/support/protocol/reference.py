"""A naive model of the rounds, written from the rules and not from the ledger.

Keeps every life and every contribution for ever and recomputes all else from them at each event. Only the pace of
arrivals and the choice of a quorum are taken from the package: they have tests of their own. Must never be fast at the
cost of being plain.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

from outpace.protocol.events import Arrive, Attempt, Away, Back, Dead, Done, Event, Finish, Join, Refuse, Seal, Sync
from outpace.protocol.pace import Pace, QuorumChoice
from outpace.protocol.rules import Rules

ROWS = (0, 1)


@dataclass
class Life:
    rank: int
    incarnation: int
    state: str = "active"
    alive: bool = True
    last_step: int = 0
    heard_in: int = 0
    finishes: int | None = None  #: while away: the optimizer whose end it waits for
    has_not_finished: int = 0  #: while syncing: other optimizers, as a bit mask
    needs_from: int = 0  #: the first round whose result it may not have applied


@dataclass
class Given:
    """One contribution and what became of it."""

    rank: int
    incarnation: int
    step: int
    version: int
    row: int
    late: bool
    counts: bool  #: towards the quorum; its rank waits
    round: int | None  #: the round it entered, None when it was dropped on arrival
    refused: bool = False

    @property
    def key(self) -> tuple[int, int, int]:
        return self.rank, self.incarnation, self.step


@dataclass
class Sealed:
    number: int
    world: int
    attempt: int = 0
    complete: bool = False
    void: bool = False


class Reference:
    """What the rules say after some prefix of the log."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.lives: list[Life] = []
        self.given: list[Given] = []
        self.sealed: list[Sealed] = []
        self.open = 0
        self.met_ns: int | None = None
        self.grace_ns = 0
        self.patient_until_ns: int | None = None
        self.resume_asked = [0]
        self.sync_generation, self.sync_version, self.sync_ranks = 0, 0, ()
        self.kept_from = 0  #: results of rounds before this one were given up
        self.pace, self.choice = Pace(rules.needs_pace), QuorumChoice(rules.quorum == "auto", rules.usual_lag)

    # -- who there is ----------------------------------------------------------------------------------------------

    def life(self, rank: int) -> Life | None:
        return max((x for x in self.lives if x.rank == rank), key=lambda x: x.incarnation, default=None)

    def lives_now(self) -> list[Life]:
        ranks = sorted({x.rank for x in self.lives})
        return [life for life in map(self.life, ranks) if life is not None]

    def living(self, rank: int, incarnation: int) -> Life | None:
        life = self.life(rank)
        return life if life and life.alive and life.incarnation == incarnation else None

    def unfinished(self) -> list[Life]:
        return [x for x in self.lives_now() if x.alive and x.state != "finished"]

    def counted(self) -> set[int]:
        return {x.rank for x in self.lives_now() if x.alive or x.state == "finished"}

    @property
    def started(self) -> bool:
        return len({x.rank for x in self.lives}) == self.rules.world

    @property
    def below_quorum(self) -> bool:
        return self.started and len(self.counted()) < self._least()

    def _least(self) -> int:
        """Ranks that may train without the others."""
        if self.rules.min_ranks is not None:
            return self.rules.min_ranks
        if self.rules.quorum == "majority-random":
            return 1
        return (self.rules.world + 1) // 2 if self.rules.quorum == "auto" else self._count(self.rules.world)

    # -- what there is ---------------------------------------------------------------------------------------------

    def entered(self, number: int) -> list[Given]:
        return [g for g in self.given if g.round == number]

    def pending(self) -> list[Given]:
        return self.entered(self.open)

    def on_time(self) -> list[Given]:
        return [g for g in self.pending() if g.counts]

    def reducing(self) -> Sealed | None:
        return next((s for s in self.sealed if not s.complete), None)

    def rows_taken(self) -> set[tuple[int, int]]:
        done = {s.number for s in self.sealed if s.complete}
        return {(g.rank, g.row) for g in self.given if g.round is not None and g.round not in done}

    def can_still_contribute(self) -> list[int]:
        """Members with data left that are neither in `synchronize` nor here already, and have a row to write."""
        here = {(g.rank, g.incarnation) for g in self.on_time()}
        taken = self.rows_taken()
        return [
            x.rank
            for x in self.unfinished()
            if x.state == "active"
            and (x.rank, x.incarnation) not in here
            and any((x.rank, row) not in taken for row in ROWS)
        ]

    def expected(self) -> list[int]:
        """Those to wait for: who could still come, and was heard of in this round or the two before it."""
        lives = [life for life in map(self.life, self.can_still_contribute()) if life is not None]
        return [life.rank for life in lives if self.open - life.heard_in <= 2]

    def waits_for_who_meets(self, life: Life) -> bool:
        """Whether it waits for the end of another optimizer, which somebody who synchronises here has not finished."""
        if life.state != "away" or life.finishes is None:
            return False
        return any(x.has_not_finished >> life.finishes & 1 for x in self.unfinished() if x.state == "syncing")

    @property
    def ended(self) -> bool:
        return not self.unfinished() and not self.pending() and self.reducing() is None

    def tally(self, rank: int) -> tuple[int, int, int, dict[int, int]]:
        """(on time, carried, dropped, staleness of what was applied)."""
        state = {s.number: s for s in self.sealed if s.complete}
        mine = [g for g in self.given if g.rank == rank]
        void = [g for g in mine if g.round in state and state[g.round].void and not g.refused]
        applied = [g for g in mine if g.round in state and not state[g.round].void and not g.refused]
        dropped = len(void) + sum(g.refused or g.round is None for g in mine)
        late = sum(g.late for g in applied)
        return len(applied) - late, late, dropped, dict(Counter(g.round - g.version for g in applied))

    # -- quorum ----------------------------------------------------------------------------------------------------

    def _count(self, ranks: int) -> int:
        quorum = self.rules.quorum
        if isinstance(quorum, float):
            return max(1, math.ceil(Fraction(str(quorum)) * ranks))
        if isinstance(quorum, int):
            return quorum
        majority = max(1, (ranks + 1) // 2)
        return {"solo": 1, "majority": majority, "auto": 1, "full": max(1, ranks)}[quorum]

    def quorum_is_met(self) -> bool:
        here, can = {g.rank for g in self.on_time()}, set(self.can_still_contribute())
        if not here:
            return False
        possible = len(here | can)  # a rank restarted within the round counts once
        members = [x.rank for x in self.unfinished()]
        if self.rules.quorum == "majority-random":
            draw = random.Random(self.rules.seed * 1_000_003 + self.open)
            return draw.choice(sorted(here | can)) in here or len(here) >= possible
        of = sorted(here | set(members))  # also who gave and has left
        enough = self._count(len(of))
        if self.rules.chooses and len(here) >= enough:
            enough = self.choice.needed(self.open, enough, len(of), lambda: self.pace.durations(of))
        return len(here) >= min(enough, possible)

    def goes_on_without_the_rest(self, now_ns: int) -> bool:
        """With as many as may train alone, it waits for a chosen quorum with patience, and only for ranks heard of."""
        here, members = {g.rank for g in self.on_time()}, {x.rank for x in self.unfinished()}
        of = len(here | members)
        if not self.rules.chooses or not here or len(here) < max(self._count(of), min(self._least(), of)):
            return False
        if not self.expected():
            return True
        patience = self.pace.patience_ns()
        if self.patient_until_ns is None and patience is not None:
            self.patient_until_ns = now_ns + patience
        return False

    # -- events ----------------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Takes in one event; one that no longer applies changes nothing."""
        handler = getattr(self, "_" + type(event).__name__.lower(), None)
        if handler is not None and handler(event):
            self._settle(event.time_ns)
        self._give_up_results()

    def _give_up_results(self) -> None:
        """What every living rank has applied, and what is more than is kept for one that has not."""
        complete = sum(s.complete and s.number >= self.kept_from for s in self.sealed)
        self.kept_from += max(0, complete - self.rules.max_staleness)
        living = [x.needs_from for x in self.lives_now() if x.alive]
        self.kept_from = max(self.kept_from, min(living, default=0))

    def _join(self, event: Join) -> bool:
        if any(x.rank == event.rank and x.incarnation >= event.incarnation for x in self.lives):
            return False
        self.lives.append(Life(event.rank, event.incarnation, heard_in=self.open, needs_from=self.kept_from))
        self.pace.forget(event.rank)
        return True

    def _arrive(self, event: Arrive) -> bool:
        life = self.living(event.rank, event.incarnation)
        if life is not None and life.state == "away":
            life.state = "active"
        if life is None or life.state != "active" or event.step <= life.last_step:
            return False
        if (event.rank, event.row) in self.rows_taken() or event.version > self.open:
            return False
        life.last_step = event.step
        life.heard_in = self.open
        life.needs_from = event.version
        late = event.version < self.open
        too_late = late and (self.rules.late == "drop" or self.open - event.version > self.rules.max_staleness)
        counts = not late or self.rules.late == "count"
        entered = None if too_late else self.open
        self.pace.arrived(event.rank, event.version, event.time_ns)
        self.given.append(
            Given(event.rank, event.incarnation, event.step, event.version, event.row, late, counts, entered)
        )
        return True

    def _seal(self, event: Seal) -> bool:
        is_due = self.met_ns is not None or self.patient_until_ns is not None
        if event.number != self.open or self.reducing() or not is_due:
            return False
        self._close()
        return True

    def _attempt(self, event: Attempt) -> bool:
        sealed = self.reducing()
        if sealed and (event.round, event.attempt) == (sealed.number, sealed.attempt + 1):
            sealed.attempt += 1
        return False

    def _refuse(self, event: Refuse) -> bool:
        sealed = self.reducing()
        if sealed is None:
            return False
        left = [g for g in self.entered(sealed.number) if not g.refused]
        bad = [g for g in left if g.key == (event.rank, event.incarnation, event.step)]
        for g in bad:
            g.refused = True
            sealed.attempt += 1
        if bad and len(left) == 1:
            self._complete(sealed, void=True, now_ns=event.time_ns)
            return True
        return False

    def _done(self, event: Done) -> bool:
        sealed = self.reducing()
        if sealed is None or (event.round, event.attempt) != (sealed.number, sealed.attempt):
            return False
        self._complete(sealed, void=event.void, now_ns=event.time_ns)
        return True

    def _sync(self, event: Sync) -> bool:
        life = self.living(event.rank, event.incarnation)
        if life is None or life.state not in ("active", "away") or event.generation != self.sync_generation:
            return False
        life.state, life.has_not_finished = "syncing", event.unfinished
        self.resume_asked.append(event.resume)
        return True

    def _finish(self, event: Finish) -> bool:
        life = self.living(event.rank, event.incarnation)
        if life is None or life.state == "finished":
            return False
        life.state = "finished"
        return True

    def _away(self, event: Away) -> bool:
        life = self.living(event.rank, event.incarnation)
        if life is None or life.state != "active":
            return False
        life.state, life.finishes = "away", event.optimizer if event.is_at_end else None
        return True

    def _back(self, event: Back) -> bool:
        life = self.living(event.rank, event.incarnation)
        if life is not None and life.state == "away":
            life.state = "active"
        return False

    def _dead(self, event: Dead) -> bool:
        life = self.living(event.rank, event.incarnation)
        if life is None:
            return False
        life.alive = False
        self.pace.forget(event.rank)
        return True

    # -- rounds ----------------------------------------------------------------------------------------------------

    def _settle(self, now_ns: int) -> None:
        if not self.started or self.reducing():
            return
        if self.quorum_is_met():
            self._note_quorum(now_ns)
            assert self.met_ns is not None
            until_ns = self.met_ns + self.grace_ns
            if not self.grace_ns or not any(self.pace.may_be_here(rank, until_ns) for rank in self.expected()):
                self._close()
        elif self.goes_on_without_the_rest(now_ns):
            self._close()
        elif self.pending() and not self.can_still_contribute():
            self._close()  # nobody can contribute any more: a flush round
        waiting = [x for x in self.unfinished() if not self.waits_for_who_meets(x)]
        if waiting and not self.pending() and not self.reducing() and all(x.state == "syncing" for x in waiting):
            self._end_synchronisation(waiting)

    def _note_quorum(self, now_ns: int) -> None:
        if self.met_ns is None:
            self.met_ns = now_ns
            self.pace.quorum_met(self.open, now_ns, self.rules.max_staleness)
            grace = self.rules.grace
            self.grace_ns = self.pace.grace_ns() if grace == "auto" else int(float(grace) * 1e9)

    def _close(self) -> None:
        world = len(self.counted() | {g.rank for g in self.pending()})
        self.sealed.append(Sealed(self.open, world))
        self.open += 1
        self.met_ns, self.grace_ns, self.patient_until_ns = None, 0, None

    def _complete(self, sealed: Sealed, void: bool, now_ns: int) -> None:
        sealed.complete, sealed.void = True, void
        self.pace.released([g.rank for g in self.entered(sealed.number) if g.counts], now_ns)

    def _end_synchronisation(self, waiting: list[Life]) -> None:
        if any(self.resume_asked):
            self.open = max(self.open, max(self.resume_asked) - 1)
            self.kept_from = self.open
            for life in self.lives_now():
                life.needs_from = self.open
        self.resume_asked = [0]
        self.sync_generation += 1
        self.sync_version, self.sync_ranks = self.open, tuple(x.rank for x in waiting)
        for life in waiting:
            life.state = "active"


def leaders(reference: Reference) -> dict[int, tuple[int, int] | None]:
    """By the rule: of each round's on-time contributors the one with the most own steps, never going back."""
    found: dict[int, tuple[int, int] | None] = {}
    last = 0

    def steps(g: Given) -> tuple[int, int]:
        return g.step, -g.rank

    for sealed in reference.sealed:
        best = max((g for g in reference.entered(sealed.number) if g.counts and not g.refused), key=steps, default=None)
        ahead = best is not None and best.step >= last
        found[sealed.number] = (best.rank, best.step) if best is not None and ahead else None
        last = best.step if best is not None and ahead else last
    return found
