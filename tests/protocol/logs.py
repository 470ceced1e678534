"""Short ways to write a log by hand."""

from __future__ import annotations

from outpace.protocol.events import Event, Kind
from outpace.protocol.ledger import Ledger
from outpace.protocol.rules import Rules


def started(world: int, **choices: object) -> Ledger:
    """A ledger whose ranks have all joined as incarnation 1. Without grace, unless asked for."""
    ledger = Ledger(Rules(world, **{"grace": 0, **choices}))  # type: ignore[arg-type]
    for rank in range(world):
        ledger.apply(join(rank))
    return ledger


def join(rank: int, incarnation: int = 1) -> Event:
    return Event(Kind.JOIN, rank, incarnation)


def arrive(
    rank: int, version: int, step: int | None = None, *, row: int = 0, incarnation: int = 1, at_ns: int = 0
) -> Event:
    """By default a rank's step is one more than its version: it has been on time so far."""
    step = version + 1 if step is None else step
    return Event(Kind.ARRIVE, rank, incarnation, step, version, row, samples=1.0, time_ns=at_ns)


def done(ledger: Ledger, value: float = 1.0, at_ns: int = 0) -> Event:
    sealed = ledger.reducing
    assert sealed is not None
    return Event(
        Kind.DONE, 0, round=sealed.number, place=sealed.slot, attempt=sealed.attempt, value=value, time_ns=at_ns
    )


def refuse(rank: int, step: int, incarnation: int = 1) -> Event:
    return Event(Kind.REFUSE, rank, incarnation, step)


def seal(round_: int) -> Event:
    return Event(Kind.SEAL, 0, round=round_)


def dead(rank: int, incarnation: int = 1) -> Event:
    return Event(Kind.DEAD, rank, incarnation)


def finish(rank: int, incarnation: int = 1) -> Event:
    return Event(Kind.FINISH, rank, incarnation)


def sync(rank: int, generation: int = 0, resume_round: int | None = None) -> Event:
    return Event(Kind.SYNC, rank, 1, generation, 0 if resume_round is None else resume_round + 1)


def sealed_ranks(ledger: Ledger) -> list[int]:
    """Who is in the round that is being reduced."""
    assert ledger.reducing is not None
    return [c.rank for c in ledger.reducing.contributions]
