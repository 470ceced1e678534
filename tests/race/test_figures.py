"""From recordings to figures: what is counted as computing, waiting, late and lost."""

from outpace.observe.schema import Pause, RankTrace, Step, Trace, tally
from outpace.race.result import LOSSES, Attempt, Point, attempt_of

S = 10**9


def step(number, begin, ready, end, loss=None):
    """A step at these seconds; all that is after its gradients is waiting."""
    return Step(number, begin * S, ready * S, end * S, waited_s=end - ready, apply_s=0.0, loss=loss)


def rank(number, *steps, pauses=(), tally=None):
    return RankTrace(number, "here", steps, pauses, tally)


def figures(*ranks, **others):
    trace = Trace(len(ranks), "x", 0, {rank.rank: rank for rank in ranks})
    return attempt_of(Attempt(0, "01-x"), trace, **others)


EVEN = [rank(n, step(1, 1, 3, 4, loss=4.0), step(2, 4, 5, 7, loss=2.0)) for n in range(2)]


def test_time_is_from_the_first_step_to_the_last_end():
    late = rank(1, step(1, 2, 3, 4), step(2, 4, 5, 9), pauses=(Pause("finish", 9 * S, 11 * S),))
    assert figures(EVEN[0], late).seconds == 10


def test_a_rank_waits_in_its_steps_and_between_them_but_not_before_the_first():
    pauses = (Pause("synchronize", 0, S), Pause("finish", 7 * S, 9 * S))
    (result,) = figures(rank(0, *EVEN[0].steps, pauses=pauses)).ranks
    assert result.waited_s == 1 + 2 + 2
    assert result.computed_s == 2 + 1
    assert result.steps == 2


def test_where_nobody_counts_every_step_is_on_time():
    found = figures(*EVEN)
    assert [(r.on_time, r.carried, r.dropped, r.share) for r in found.ranks] == [(2, 0, 0, 0.5)] * 2
    assert found.staleness == ((0, 4),)


def test_what_the_ledger_counted_goes_before():
    slow = rank(1, *EVEN[1].steps, tally=tally(0, 1, 3, {2: 1}))
    fast = rank(0, *EVEN[0].steps, tally=tally(3, 0, 0, {0: 3}))
    found = figures(fast, slow)
    assert [(r.on_time, r.carried, r.dropped, r.share) for r in found.ranks] == [(3, 0, 0, 0.75), (0, 1, 3, 0.25)]
    assert found.staleness == ((0, 3), (2, 1))


def test_samples_are_those_the_ranks_tell_or_else_their_steps():
    assert figures(*EVEN, samples=[10.0, 20.0]).samples == 30
    assert figures(*EVEN).samples == 4


def test_the_curve_begins_when_rank_0_does():
    early = rank(1, step(1, 0, 3, 4))
    found = figures(EVEN[0], early, curve=[Point(0.5, 0, 9.0, 9.0)])
    assert found.curve == (Point(1.5, 0, 9.0, 9.0),)


def test_without_a_curve_the_loss_of_training_stands_for_it():
    found = figures(*EVEN)
    assert [(point.seconds, point.loss) for point in found.curve] == [(2, 4.0), (4, 2.0)]


def test_losses_are_means_over_ranks_and_as_many_as_can_be_drawn():
    steps = [step(n, n, n + 1, n + 1, loss=float(n % 2)) for n in range(10 * LOSSES)]
    found = figures(rank(0, *steps), rank(1, *steps))
    assert len(found.losses) == LOSSES
    assert all(0.3 < loss.loss < 0.7 for loss in found.losses)
