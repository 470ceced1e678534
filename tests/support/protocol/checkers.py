"""Checks on a ledger, each about one promise. They read the ledger's public face and never change it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from outpace.protocol.events import Arrive, Done, Event, Outcome, OutcomeKind, Refuse
from outpace.protocol.ledger import Ledger
from outpace.protocol.round import Contribution, Round
from tests.support.protocol.reference import Reference


def seen_by(ledger: Ledger) -> dict[str, Any]:
    """The ledger's state in the words of the reference."""
    sealed = ledger.reducing
    return {
        "open": ledger.round,
        "on_time": {_key(c) for c in ledger.on_time},
        "carried": {_key(c) for c in ledger.carried},
        "quorum met": (ledger.met_ns, ledger.grace_ns),
        "awaited": ledger.awaited(),
        "pace": vars(ledger.pace),
        "reducing": None if sealed is None else _of_round(sealed),
        "completed": {number: _of_round(r) for number, r in ledger.completed.items()},
        "members": {m.rank: (m.incarnation, m.state, m.alive) for m in ledger.members.by_rank.values()},
        "tallies": {
            rank: (t.on_time, t.carried, t.dropped, dict(t.staleness)) for rank, t in ledger.members.tallies.items()
        },
        "sync": (ledger.sync.generation, ledger.sync.version, ledger.sync.ranks),
        "flags": (ledger.started, ledger.ended, ledger.below_quorum),
        "pending": {rank: {_key(c) for c in ledger.pending(rank)} for rank in ledger.members.by_rank},
    }


def expected_by(reference: Reference) -> dict[str, Any]:
    """The same, from the reference."""
    sealed = reference.reducing()
    kept = [s for s in reference.sealed if s.complete and s.number >= reference.kept_from]
    ranks = [x.rank for x in reference.lives_now()]

    def of_round(s: Any) -> tuple[Any, ...]:
        entered = reference.entered(s.number)
        good = {g.key for g in entered if not g.refused}
        return s.number, good, {g.key for g in entered if g.refused}, s.world, s.attempt, s.void

    return {
        "open": reference.open,
        "on_time": {g.key for g in reference.on_time()},
        "carried": {g.key for g in reference.pending() if not g.counts},
        "quorum met": (reference.met_ns, reference.grace_ns),
        "awaited": reference.can_still_contribute() or [x.rank for x in reference.unfinished() if x.state == "away"],
        "pace": vars(reference.pace),
        "reducing": None if sealed is None else of_round(sealed),
        "completed": {s.number: of_round(s) for s in kept},
        "members": {x.rank: (x.incarnation, x.state, x.alive) for x in reference.lives_now()},
        "tallies": {rank: reference.tally(rank) for rank in ranks},
        "sync": (reference.sync_generation, reference.sync_version, reference.sync_ranks),
        "flags": (reference.started, reference.ended, reference.below_quorum),
        "pending": {rank: {g.key for g in reference.pending() if g.rank == rank} for rank in ranks},
    }


def check_rows_and_slots(ledger: Ledger) -> None:
    """No row is given out while a round that includes it is incomplete; no slot that is kept or being written."""
    sealed = ledger.reducing
    frozen = [] if sealed is None else [*sealed.contributions, *sealed.refused]
    held = [(c.rank, c.row) for c in [*frozen, *ledger.on_time, *ledger.carried]]
    assert len(held) == len(set(held)), f"a row is in two contributions: {sorted(held)}"
    for rank in ledger.members.by_rank:
        free = ledger.free_row(rank)
        assert (rank, free) not in held
        assert free in ((0, 1) if {(rank, 0), (rank, 1)} - set(held) else (None,))
        assert free != 1 or (rank, 0) in held, "the second row is for when the first one is taken"
    kept = [r.slot for r in ledger.completed.values()] + ([] if sealed is None else [sealed.slot])
    assert len(kept) == len(set(kept)), f"two results in one slot: {kept}"
    assert not set(kept) & set(ledger.free_slots())
    assert set(kept) | set(ledger.free_slots()) == set(range(ledger.results.slots))
    assert ledger.free_slots(), "no slot is left for another attempt"


def check_exact_majority(ledger: Ledger, sealed: Round) -> None:
    """Right after a round was sealed without grace: at least half were on time, or all who could be."""
    if not any(ledger.waits(c) for c in sealed.contributions):
        return  # a flush round
    here = {c.rank for c in sealed.contributions if ledger.waits(c)}  # one restarted within the round counts once
    rows = Counter(c.rank for c in sealed.contributions)
    members = ledger.members.unfinished()
    more = [m.rank for m in members if m.state == "active" and m.rank not in here and rows[m.rank] < 2]
    enough = min(-(-len(here | {m.rank for m in members}) // 2), len(here) + len(more))
    assert len(here) >= enough, f"round {sealed.number} has {len(here)} on time, {more} could still come"


class Audit:
    """Follows every contribution from its arrival to its end, from what the ledger shows after each event."""

    def __init__(self) -> None:
        self.accepted: list[tuple[int, int, int]] = []
        self.dropped: list[tuple[int, int, int]] = []
        self.rounds: list[Round] = []
        self._frozen: Round | None = None  #: being reduced before the event

    def note(self, ledger: Ledger, event: Event, outcome: Outcome) -> None:
        """After the ledger has taken in the event."""
        if outcome.is_ignored:
            return
        if isinstance(event, Arrive):
            key = (event.rank, event.incarnation, event.step)
            self.accepted.append(key)
            self.dropped += [key] if outcome.kind is OutcomeKind.DROPPED else []
        elif isinstance(event, Done) and self._frozen is not None:
            self.rounds.append(self._frozen._replace(void=event.void))
        elif isinstance(event, Refuse) and self._frozen is not None and len(self._frozen.contributions) == 1:
            everybody = (*self._frozen.refused, *self._frozen.contributions)
            self.rounds.append(self._frozen._replace(contributions=(), refused=everybody, void=True))
        self._frozen = ledger.reducing

    def check(self, ledger: Ledger) -> None:
        """Each accepted contribution is in exactly one place, and the tallies add up to the rounds."""
        frozen = [] if ledger.reducing is None else [ledger.reducing]
        places = Counter(self.dropped)
        for round_ in self.rounds + frozen:
            places.update(_key(c) for c in (*round_.contributions, *round_.refused))
        places.update(_key(c) for c in ledger.on_time + ledger.carried)
        assert places == Counter(self.accepted)
        self._check_tallies(ledger, frozen)

    def _check_tallies(self, ledger: Ledger, frozen: list[Round]) -> None:
        applied = [(r, c) for r in self.rounds if not r.void for c in r.contributions]
        lost = len(self.dropped) + sum(len(r.refused) for r in self.rounds + frozen)
        lost += sum(len(r.contributions) for r in self.rounds if r.void)
        tallies = ledger.members.tallies.values()
        assert sum(t.on_time + t.carried for t in tallies) == len(applied)
        assert sum(t.dropped for t in tallies) == lost
        assert sum((t.staleness for t in tallies), Counter()) == Counter(r.staleness(c) for r, c in applied)

    def check_staleness(self, bound: int) -> None:
        """Nothing older than the bound was ever taken in, and nothing from the future."""
        for round_ in self.rounds:
            for c in round_.contributions:
                assert 0 <= round_.staleness(c) <= bound
                assert c.late == (round_.staleness(c) > 0)

    def check_order(self, resumed: bool) -> None:
        """Rounds complete one after the other; only a resume may leave numbers out."""
        numbers = [r.number for r in self.rounds]
        assert numbers == sorted(set(numbers))
        if not resumed:
            assert numbers == list(range(len(numbers)))


def _key(c: Contribution) -> tuple[int, int, int]:
    return c.rank, c.incarnation, c.step


def _of_round(r: Round) -> tuple[Any, ...]:
    return r.number, {_key(c) for c in r.contributions}, {_key(c) for c in r.refused}, r.world, r.attempt, r.void
