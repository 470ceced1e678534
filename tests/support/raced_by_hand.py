"""Races made by hand, for tests of what follows from them."""

from outpace.race.result import Attempt, Entry, Losses, Point, Race, RankResult, Settings
from outpace.workloads.base import ACCURACY


def attempt(seconds, *curve, seed=0, samples=100.0, staleness=((0, 10),)):
    """An attempt of two ranks whose accuracy is given as (seconds, accuracy)."""
    ranks = tuple(
        RankResult(rank, 10, samples / 2, seconds, seconds - waited, waited, on_time=5, share=0.5)
        for rank, waited in ((0, 1.0), (1, 0.0))
    )
    points = tuple(Point(at, at, 1 - value, value) for at, value in curve)
    return Attempt(seed, "01-x", seconds, points, (Losses(0.5, 2.0),), staleness, ranks)


def race(*entries, **settings):
    """A race of (system, attempts)."""
    made = tuple(Entry(name, name, tuple(attempts)) for name, attempts in entries)
    return Race(Settings(ranks=2, **settings), "outpace race --seed 0", ACCURACY, made)
