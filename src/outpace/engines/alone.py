"""Whether a rank that waits for all is the only one that does. Owns telling that from ranks that are merely slower.

A slower rank still has steps to make that the waiting one has made. One that goes far beyond it does not know of the
meeting: `synchronize()` was called on some ranks only, and the ranks train one after the other.
"""

from __future__ import annotations

import logging

from outpace.protocol.ledger import Ledger
from outpace.protocol.members import ACTIVE

log = logging.getLogger("outpace")

PATIENCE_S = 10.0  #: a wait this long is worth a word
FAR, AT_LEAST = 2, 10  #: times as many steps as the waiting rank has made since all last met, and so many more


class LonelyWait:
    """One rank that waits for all, from one meeting to the next."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._met_at: dict[int, int] = {}  # steps of each rank when all last met
        self._since: float | None = None  # when this wait began; None once it was warned of

    def begin(self, now_s: float) -> None:
        """This rank is at the meeting."""
        self._since = now_s

    def look(self, ledger: Ledger, now_s: float) -> None:
        """Warns, once in a wait, if others go on stepping as if nobody waited for them."""
        if self._since is None or now_s - self._since < PATIENCE_S:
            return
        own = self._made(ledger, self._rank)
        far = {rank: made for rank in _active(ledger) if (made := self._made(ledger, rank)) >= FAR * own + AT_LEAST}
        if far:
            log.warning(
                "[rank %d - round %d] has waited %.0f s in synchronize() for ranks %s, which keep stepping: %d steps "
                "since all ranks last met, %d here. Until they call it, too, or finish, this rank trains nothing. Call "
                "synchronize() on all ranks, not under `if rank == 0:`",
                *(self._rank, ledger.round, now_s - self._since, sorted(far), max(far.values()), own),
            )
            self._since = None

    def all_have_met(self, ledger: Ledger) -> None:
        """Steps are counted from here."""
        self._met_at = {rank: _steps(ledger, rank) for rank in range(ledger.rules.world)}

    def _made(self, ledger: Ledger, rank: int) -> int:
        return _steps(ledger, rank) - self._met_at.get(rank, 0)


def _active(ledger: Ledger) -> list[int]:
    return [member.rank for member in ledger.members.unfinished() if member.state == ACTIVE]


def _steps(ledger: Ledger, rank: int) -> int:
    """Contributions, or weights published."""
    member, shelf = ledger.members.by_rank.get(rank), ledger.published.shelves.get(rank)
    return max(0, 0 if member is None else member.last_step, 0 if shelf is None else shelf.iteration)
