"""The verdict holds in every case, also where there is little to tell."""

from __future__ import annotations

import math
from dataclasses import replace

from outpace.race.report.words import headline_figures, notes, sentences, verdict
from outpace.race.result import Entry, Race, Settings
from outpace.workloads.base import LOSS
from tests.support import made_races
from tests.support.made_races import duel, failed, plain


def race(*entries: Entry, **changes) -> Race:
    return replace(duel(10, 20), entries=entries, **changes)


def settings(**changes) -> Settings:
    return replace(Settings("digits", epochs=2, target=0.9, compute_ms=0), **changes)


def test_a_winner_is_named_with_its_times_and_why_it_won():
    assert verdict(duel(14.2, 27.9)) == (
        "eager-majority won: it reached 90.0% accuracy in 14.2 s, where torch DDP needed 27.9 s (1.96x). "
        "torch DDP's ranks waited 48% of their time for the slowest; eager-majority's 6%. "
        "11% of its contributions came a round late and were carried. "
        "That is one seed: --repeat 3 shows how much is luck."
    )


def test_nobody_wins_a_target_that_nobody_reached():
    said = verdict(duel(10, 20, settings=settings(target=0.99)))
    assert said.startswith("No system reached 99.0% accuracy, so nobody won. The best model was that of torch DDP: ")
    assert "fastest" not in said


def test_a_baseline_that_nobody_beat_is_said_to_be_unbeaten_and_why():
    even = race(plain("ddp", 10, waited=0.03), plain("eager-majority", 11))
    assert verdict(even) == (
        "No strategy beat torch DDP here: it reached 90.0% accuracy in 10.0 s; the next, eager-majority, needed 11.0 s "
        "(1.10x as long). Its ranks were even: they waited 3% of their time, so there was nothing to win. "
        "That is one seed: --repeat 3 shows how much is luck."
    )


def test_a_baseline_that_won_although_its_ranks_waited_is_not_called_even():
    said = verdict(race(plain("ddp", 10, waited=0.4), plain("eager-majority", 11)))
    assert "even" not in said
    assert "Its ranks waited 40% of their time, but not waiting did not pay off here." in said


def test_a_lead_within_noise_is_no_win():
    said = verdict(duel(10, 10.4))
    assert said.startswith("A tie: eager-majority reached 90.0% accuracy in 10.0 s, torch DDP in 10.4 s, which is")
    assert " won" not in said


def test_attempts_that_overlap_are_no_win():
    said = verdict(race(plain("ddp", 10, 14), plain("eager-majority", 9, 11)))
    assert said.startswith("A tie: eager-majority reached")
    assert "one seed" not in said


def test_who_is_as_fast_as_the_winner_is_said_to_be():
    said = verdict(race(plain("ddp", 20), plain("eager-solo", 10), plain("wagma", 10.2), plain("sgp", 15)))
    assert said.startswith("eager-solo won")
    assert "wagma was as fast, within noise." in said


def test_a_faster_run_that_learned_less_does_not_win():
    fast = plain("eager-majority", 10, final=0.935)
    said = verdict(race(plain("ddp", 20, final=0.95), fast, plain("wagma", 15)))
    assert said.startswith("wagma won: it reached 90.0% accuracy in 15.0 s, where torch DDP needed 20.0 s (1.33x).")
    assert "eager-majority (93.5% accuracy) learned less than torch DDP (95.0%), however fast." in said


def test_a_busy_machine_has_no_winner():
    raced = duel(10, 20)
    busy = replace(raced.entries[0], attempts=tuple(map(made_races.on_a_busy_machine, raced.entries[0].attempts)))
    said = verdict(replace(raced, entries=(busy, raced.entries[1])))
    assert said.startswith("This machine was too busy, so the times are not comparable. Ranks computed up to 1.40x as")
    assert " won" not in said


def test_learning_rates_that_were_tuned_are_explained():
    assert "on a seed that is not in the race" in notes(duel(10, 20, settings=settings(tune=True)))["learning rate"]
    assert "the same for every system" in notes(duel(10, 20))["learning rate"]


def test_a_model_that_is_worse_by_less_than_a_point_is_not_worth_a_word():
    said = verdict(race(plain("ddp", 20, final=0.95), plain("eager-majority", 10, final=0.945)))
    assert "learned less" not in said


def test_a_loss_that_is_higher_by_more_than_a_twentieth_is_said():
    lower = settings(target=0.6)
    said = verdict(race(plain("ddp", 20, final=0.5), plain("wagma", 10, final=0.55), metric=LOSS, settings=lower))
    assert "wagma (loss 0.55) learned less than torch DDP (0.5), however fast." in said
    assert "wagma won" not in said


def test_a_model_that_diverged_is_said_to_have():
    diverged = plain("eager-majority", 10)
    attempt = diverged.attempts[0]
    curve = (*attempt.curve[:-1], attempt.curve[-1]._replace(metric=math.nan))
    said = verdict(race(plain("ddp", 20), replace(diverged, attempts=(replace(attempt, curve=curve),))))
    assert "eager-majority (diverged) learned less than torch DDP (95.0%), however fast." in said


def test_without_a_baseline_the_next_best_is_compared_with():
    said = verdict(race(plain("wagma", 16), plain("eager-majority", 10)))
    assert said == (
        "eager-majority was first: it reached 90.0% accuracy in 10.0 s, where wagma needed 16.0 s (1.60x). "
        "DDP did not take part, so there is no baseline to compare with. "
        "That is one seed: --repeat 3 shows how much is luck."
    )


def test_a_baseline_that_failed_is_told_from_one_that_did_not_take_part():
    said = verdict(race(failed("ddp", "torch DDP")[0], plain("wagma", 16), plain("eager-majority", 10)))
    assert "DDP failed, so there is no baseline" in said
    assert "torch DDP failed and is not ranked." in said


def test_one_system_alone_wins_nothing():
    said = verdict(race(plain("ddp", 10)))
    assert said.startswith(
        "Only torch DDP ran, so there is nothing to compare it with. It reached 90.0% accuracy in 10.0"
    )
    assert "won" not in said


def test_the_only_one_that_finished_wins_nothing():
    said = verdict(race(plain("ddp", 10), failed("sgp", "sgp")[0]))
    assert said.startswith("Of all systems only torch DDP finished")
    assert "sgp failed and is not ranked." in said


def test_a_baseline_that_never_reached_the_target_is_said():
    said = verdict(race(plain("ddp", 20, final=0.85), plain("eager-majority", 10), plain("wagma", 12)))
    assert said.startswith("eager-majority won: it reached 90.0% accuracy in 10.0 s, which torch DDP never did.")


def test_a_target_that_only_the_winner_reached():
    said = verdict(race(plain("ddp", 20, final=0.85), plain("eager-majority", 10)))
    assert said.startswith("eager-majority won: it reached 90.0% accuracy in 10.0 s, which no other system did.")


def test_without_any_measurement_samples_per_second_are_compared():
    blind = [
        replace(e, attempts=tuple(replace(a, curve=()) for a in e.attempts))
        for e in (plain("ddp", 20), plain("wagma", 10))
    ]
    said = verdict(race(*blind, settings=settings(target=None)))
    assert said.startswith("wagma was fastest: 2.00x the samples per second of torch DDP.")


def test_all_that_failed_are_named():
    said = verdict(race(plain("ddp", 20), plain("wagma", 10), failed("sgp", "sgp")[0], failed("dpsgd", "d-psgd")[0]))
    assert said.endswith("sgp and d-psgd failed and are not ranked.")


def test_a_single_attempt_that_failed_is_counted():
    wagma = plain("wagma", 10, 10.1)
    broken = replace(wagma, attempts=(*wagma.attempts, failed("wagma", "")[0].attempts[0]))
    assert "1 of 3 attempts of wagma failed and did not count." in verdict(race(plain("ddp", 20, 21), broken))


def test_nobody_finished():
    said = verdict(race(failed("ddp", "torch DDP")[0], failed("sgp", "sgp")[0]))
    assert said == "Nobody won: no system finished: torch DDP and sgp failed. There is nothing to compare."


def test_nothing_ran_at_all():
    assert verdict(race(interrupted=True)).startswith("Nobody won: no system finished. There is nothing")


def test_an_interrupted_race_names_what_did_not_run():
    said = verdict(race(plain("ddp", 20), plain("wagma", 10), Entry("sgp", "sgp"), interrupted=True))
    assert said.endswith("The race was interrupted: sgp did not run.")


def test_emulated_computing_is_said():
    said = verdict(duel(10, 20, settings=settings(compute_ms=100.0)))
    assert said.endswith("Computing was emulated: ranks slept 100 ms for a mean mini-batch.")
    assert "emulated" not in verdict(duel(10, 20))


def test_dropped_contributions_are_said():
    said = verdict(race(plain("ddp", 20), plain("dropcompute", 10, dropped=5)))
    assert "9% of its contributions were dropped." in said


def test_figures_above_the_page_are_of_winner_and_baseline():
    assert headline_figures(duel(10, 20)) == [
        ("95.0% accuracy", "95.0% accuracy with torch DDP"),
        ("2.00x", "as fast to 90.0% accuracy: 10.0 s instead of 20.0 s"),
        ("48% → 6%", "of their time ranks waited: torch DDP → eager-majority"),
    ]
    assert headline_figures(race(plain("ddp", 10), plain("wagma", 20))) == []


def test_the_first_sentence_stands_alone():
    assert sentences(made_races.usual()[0])[0].endswith(".")
