"""Long random runs under all checks at once.

The drawn lists of the property tests shrink well but stay short; these go deeper. A failing run is cut down to few
choices, and printed with its seed: `pytest tests/protocol/test_ledger_soak.py -k seed17` plays it again.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from outpace.protocol.events import Event, Outcome
from outpace.protocol.ledger import Ledger
from outpace.protocol.rules import Rules
from tests.support.protocol.checkers import Audit, check_exact_majority, check_rows_and_slots, expected_by, seen_by
from tests.support.protocol.reference import Reference
from tests.support.protocol.simulated_ranks import ACTIONS, Choice, Run

QUORUMS = ("solo", "majority", "full", "majority-random", "auto", 1, 2, 3, 0.4, 0.7)
RUNS_PER_SEED = 8


def random_rules(draw: random.Random) -> Rules:
    world = draw.randint(1, 5)
    quorum = draw.choice(QUORUMS)
    return Rules(
        world,
        quorum=min(quorum, world) if isinstance(quorum, int) else quorum,
        late=draw.choice(("carry", "carry", "count", "drop")),
        max_staleness=draw.randint(1, 4),
        grace=draw.choice((0, 0.001, "auto")),
        min_ranks=draw.choice((None, 1)),
        seed=draw.randrange(4),
    )


def random_choices(draw: random.Random) -> list[Choice]:
    """Up to a few hundred choices, in a run where some things never happen and some ranks are slow."""
    never = set(draw.sample(sorted(set(ACTIONS) - {"go", "done", "seal"}), draw.randint(0, 10)))
    actions = [action for action in ACTIONS if action not in never]
    ranks = draw.choices(range(5), k=8)
    length = draw.choice((60, 120, 240))
    return [Choice(draw.choice(actions), draw.choice(ranks), draw.randrange(20)) for _ in range(length)]


def play_checked(rules: Rules, choices: list[Choice]) -> None:
    """Plays the choices and then goes on fairly; every promise is checked after every event."""
    audit, reference, restored = Audit(), Reference(rules), Ledger(rules)
    newest = -1

    def check(event: Event, outcome: Outcome) -> None:
        nonlocal restored, newest
        ledger = run.ledger
        audit.note(ledger, event, outcome)
        audit.check(ledger)
        check_rows_and_slots(ledger)
        reference.apply(event)
        assert seen_by(ledger) == expected_by(reference)
        assert restored.apply(event) == outcome
        state = json.dumps(ledger.to_state())
        assert json.dumps(restored.to_state()) == state
        if len(run.log) % 7 == 0:
            restored = Ledger.from_state(rules, json.loads(state))
        sealed = ledger.reducing
        if sealed is not None and sealed.number > newest:
            newest = sealed.number
            if rules.quorum == "majority" and rules.grace == 0:
                check_exact_majority(ledger, sealed)

    run = Run(rules, check)
    for rank in run.ranks:
        run.join(rank)
    for choice in choices:
        run.play(choice)
    assert run.go_on_fairly(steps=2)
    audit.check_staleness(rules.max_staleness)
    audit.check_order(run.resumed)


def failure(rules: Rules, choices: list[Choice]) -> str | None:
    try:
        play_checked(rules, choices)
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"
    return None


def cut_down(choices: list[Choice], fails: Callable[[list[Choice]], bool]) -> list[Choice]:
    """The same failure with fewer choices: leaves out ever smaller pieces while it stays."""
    size = len(choices) // 2
    while size:
        at = 0
        while at < len(choices):
            without = choices[:at] + choices[at + size :]
            if fails(without):
                choices = without
            else:
                at += size
        size //= 2
    return choices


@pytest.mark.parametrize("seed", range(40), ids=lambda seed: f"seed{seed}")
def test_every_promise_holds_in_long_random_runs(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(RUNS_PER_SEED):
        rules, choices = random_rules(draw), random_choices(draw)
        if failure(rules, choices) is not None:
            few = cut_down(choices, lambda shorter, rules=rules: failure(rules, shorter) is not None)
            pytest.fail(f"seed {seed}\n{rules}\n" + "\n".join(map(str, few)) + f"\n{failure(rules, few)}")


def test_cutting_down_keeps_what_the_failure_needs() -> None:
    choices = [Choice("go", 0, number) for number in range(50)]
    few = cut_down(choices, lambda shorter: {7, 33} <= {c.number for c in shorter})
    assert [c.number for c in few] == [7, 33]
