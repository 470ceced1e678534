"""What a checker is: one promise, its own account of what happened, and an assertion in words. It changes nothing.

It has the methods it needs of these, and is told by `watch.Watch`:

    event(event, outcome)                       after the ledger took it in, before anything follows from it
    sealed(record), completed(record)           once for each round
    applying(life, result), applied(life, result)
    adopted(life, version_before)
    waited(life, version, open_round, began_ns) for so many rounds to be complete; which was open when it began
    uses(life, items)                           of the pool, in the step that it is in
    met(life, place)                            it left a synchronisation, or `finish`
    ended(life)
    end(lives)                                  after the liveness phase
"""

from __future__ import annotations

from outpace.protocol.ledger import Ledger
from tests.fuzz.watch import Scene


class Checker:
    """Knows what it may look at."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene

    @property
    def ledger(self) -> Ledger:
        """The one under test."""
        return self.scene.ledger
