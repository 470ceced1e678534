"""Short ways to write a log by hand."""

from __future__ import annotations

from outpace.protocol.events import Arrive, Dead, Done, Finish, Join, Refuse, Seal, Sync
from outpace.protocol.ledger import Ledger
from outpace.protocol.rules import Rules


def started(world: int, **choices: object) -> Ledger:
    """A ledger whose ranks have all joined as incarnation 1. Without grace, unless asked for."""
    ledger = Ledger(Rules(world, **{"grace": 0, **choices}))  # type: ignore[arg-type]
    for rank in range(world):
        ledger.apply(join(rank))
    return ledger


def join(rank: int, incarnation: int = 1) -> Join:
    return Join(rank, incarnation)


def arrive(
    rank: int, version: int, step: int | None = None, *, row: int = 0, incarnation: int = 1, at_ns: int = 0
) -> Arrive:
    """By default a rank's step is one more than its version: it has been on time so far."""
    step = version + 1 if step is None else step
    return Arrive(rank, incarnation, step, version, row, time_ns=at_ns)


def done(ledger: Ledger, void: bool = False, at_ns: int = 0) -> Done:
    sealed = ledger.reducing
    assert sealed is not None
    return Done(0, sealed.number, sealed.attempt, sealed.slot, void=void, time_ns=at_ns)


def refuse(rank: int, step: int, incarnation: int = 1) -> Refuse:
    return Refuse(rank, incarnation, step, round=0)


def seal(round_: int) -> Seal:
    return Seal(round_)


def dead(rank: int, incarnation: int = 1) -> Dead:
    return Dead(rank, incarnation)


def finish(rank: int, incarnation: int = 1) -> Finish:
    return Finish(rank, incarnation)


def sync(rank: int, generation: int = 0, resume_round: int | None = None) -> Sync:
    return Sync(rank, 1, generation, 0 if resume_round is None else resume_round + 1)


def sealed_ranks(ledger: Ledger) -> list[int]:
    """Who is in the round that is being reduced."""
    assert ledger.reducing is not None
    return [c.rank for c in ledger.reducing.contributions]
