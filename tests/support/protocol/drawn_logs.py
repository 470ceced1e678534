"""Random logs for hypothesis: rules, and what simulated ranks write under them."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from outpace.protocol.events import Event
from outpace.protocol.ledger import Ledger
from outpace.protocol.rules import Rules
from tests.support.protocol.simulated_ranks import ACTIONS, Choice, Run

NAMED_QUORUMS = ("solo", "majority", "full", "majority-random", "auto")


@st.composite
def all_rules(draw: Any, quorum: str | None = None, grace: Any = None) -> Rules:
    world = draw(st.integers(1, 5))
    quorums = st.one_of(st.sampled_from(NAMED_QUORUMS), st.integers(1, world), st.sampled_from((0.25, 0.6, 0.9)))
    return Rules(
        world,
        quorum=draw(quorums) if quorum is None else quorum,
        late=draw(st.sampled_from(("carry", "carry", "count", "drop"))),
        max_staleness=draw(st.integers(1, 4)),
        grace=draw(st.sampled_from((0, 0.001, "auto"))) if grace is None else grace,
        min_ranks=draw(st.sampled_from((None, 1))),
        repair=draw(st.sampled_from(("discount", "none"))),
        seed=draw(st.integers(0, 3)),
    )


ONE = st.builds(Choice, st.sampled_from(ACTIONS), st.integers(0, 4), st.integers(0, 19))
# Left alone, lists are drawn short: the first is what a failing run shrinks to, the second what finds one.
CHOICES = st.one_of(st.lists(ONE, max_size=40), st.lists(ONE, min_size=50, max_size=150))


def begin(run: Run, absent: int) -> None:
    """Everybody joins, except one rank that may be late."""
    for rank in run.ranks:
        if rank.rank + 1 != absent:
            run.join(rank)


def log_of(rules: Rules, choices: list[Choice]) -> list[Event]:
    run = Run(rules)
    begin(run, 0)
    for choice in choices:
        run.play(choice)
    return run.log


def plain(ledger: Ledger) -> Any:
    return json.loads(json.dumps(ledger.to_state()))
