"""What holds after every event of every log that simulated ranks can write."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from outpace.protocol.events import Event, Outcome
from outpace.protocol.ledger import Ledger
from outpace.protocol.rules import Rules
from tests.support.protocol.checkers import Audit, check_exact_majority, check_rows_and_slots, expected_by, seen_by
from tests.support.protocol.drawn_logs import CHOICES, all_rules, begin, log_of, plain
from tests.support.protocol.reference import Reference
from tests.support.protocol.simulated_ranks import Choice, Run


@settings(max_examples=150)
@given(all_rules(), CHOICES, st.integers(0, 5))
def test_ledger_agrees_with_the_reference_after_every_event(rules: Rules, choices: list[Choice], absent: int) -> None:
    reference = Reference(rules)

    def compare(event: Event, outcome: Outcome) -> None:
        reference.apply(event)
        assert seen_by(run.ledger) == expected_by(reference), (event, outcome)

    run = Run(rules, compare)
    begin(run, absent)
    for choice in choices:
        run.play(choice)


@settings(max_examples=100)
@given(all_rules(), CHOICES)
def test_each_contribution_is_in_one_round_or_dropped_once(rules: Rules, choices: list[Choice]) -> None:
    audit = Audit()

    def follow(event: Event, outcome: Outcome) -> None:
        audit.note(run.ledger, event, outcome)
        audit.check(run.ledger)

    run = Run(rules, follow)
    begin(run, 0)
    for choice in choices:
        run.play(choice)
    audit.check_staleness(rules.max_staleness)
    audit.check_order(run.resumed)


@settings(max_examples=150)
@given(all_rules(), CHOICES)
def test_rows_and_slots_in_use_are_never_given_out(rules: Rules, choices: list[Choice]) -> None:
    run = Run(rules, lambda event, reason: check_rows_and_slots(run.ledger))
    begin(run, 0)
    for choice in choices:
        run.play(choice)
        assert len(run.ledger.completed) <= rules.max_staleness


@settings(max_examples=150)
@given(all_rules(), CHOICES)
def test_no_two_attempts_in_a_row_share_a_slot(rules: Rules, choices: list[Choice]) -> None:
    tried: dict[tuple[int, int], int] = {}

    def follow(event: Event, outcome: Outcome) -> None:
        sealed = run.ledger.reducing
        if sealed is not None:
            before = tried.get((sealed.number, sealed.attempt - 1))
            assert before != sealed.slot
            assert tried.setdefault((sealed.number, sealed.attempt), sealed.slot) == sealed.slot

    run = Run(rules, follow)
    begin(run, 0)
    for choice in choices:
        run.play(choice)


@settings(max_examples=150)
@given(all_rules(quorum="majority", grace=0), CHOICES)
def test_majority_is_at_least_half_or_all_who_can(rules: Rules, choices: list[Choice]) -> None:
    seen = [-1]

    def follow(event: Event, outcome: Outcome) -> None:
        sealed = run.ledger.reducing
        if sealed is not None and sealed.number > seen[-1]:
            seen.append(sealed.number)
            check_exact_majority(run.ledger, sealed)

    run = Run(rules, follow)
    begin(run, 0)
    for choice in choices:
        run.play(choice)


@settings(max_examples=150)
@given(all_rules(), CHOICES, st.integers(0, 5), st.integers(0, 3))
def test_every_living_rank_gets_to_the_end_when_all_go_on(
    rules: Rules, choices: list[Choice], absent: int, steps: int
) -> None:
    run = Run(rules)
    begin(run, absent)
    for choice in choices:
        run.play(choice)
    assert run.go_on_fairly(steps), [(r.rank, r.alive, r.state, r.version, r.target) for r in run.ranks]


@settings(max_examples=100)
@given(all_rules(), CHOICES)
def test_two_ledgers_of_one_log_are_equal(rules: Rules, choices: list[Choice]) -> None:
    one, other = Ledger(rules), Ledger(rules)
    for event in log_of(rules, choices):
        assert one.apply(event) == other.apply(event)
        assert one.to_state() == other.to_state()


@settings(max_examples=150)
@given(all_rules(), CHOICES, st.integers(0, 150))
def test_a_restored_ledger_goes_on_like_the_one_that_was_saved(rules: Rules, choices: list[Choice], at: int) -> None:
    log = log_of(rules, choices)
    ledger = Ledger(rules)
    for event in log[:at]:
        ledger.apply(event)
    restored = Ledger.from_state(rules, plain(ledger))
    assert plain(restored) == plain(ledger)
    for event in log[at:]:
        assert restored.apply(event) == ledger.apply(event)
        assert plain(restored) == plain(ledger)
        assert restored.awaited() == ledger.awaited()


@settings(max_examples=100)
@given(all_rules(), CHOICES)
def test_a_repeated_event_changes_nothing(rules: Rules, choices: list[Choice]) -> None:
    ledger = Ledger(rules)
    for event in log_of(rules, choices):
        ledger.apply(event)
        before = plain(ledger)
        assert ledger.apply(event).is_ignored
        assert plain(ledger) == before
