"""What runs say of a strategy: how far from allreduce it learns in each cell, how soon it is there, and in short.

Figures of a cell are means over the seeds. Distances are positive where a strategy is better than allreduce: points of
a share (accuracy, SPL), per cent of a loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

import numpy as np

from bench.learning.cells import Cell
from bench.learning.runs import Job, Record
from bench.learning.tasks import BALANCED
from outpace.simulation import BASELINE
from outpace.workloads import Metric

AGAIN = "allreduce, another order"  #: the same comparison of allreduce with itself: what is chance
BARS = {True: 0.5, False: 2.0}  #: whether the metric is a share -> how far below allreduce is as good, in its unit
TARGET = 0.98  #: of allreduce's final share; of its way from the untrained loss to its final one
HALF = 0.5  #: of allreduce's way; who ends with less has not learned
Row = dict[str, Any]  #: plain, for JSON


def jobs(cells: Iterable[Cell], strategies: Iterable[str], seeds: Iterable[int]) -> list[Job]:
    """What is to be run. Allreduce learns alike under every imbalance: another order is run once for all."""
    cells, strategies, seeds = list(cells), [BASELINE, *(s for s in strategies if s != BASELINE)], list(seeds)
    alike = {cell.alike: cell for cell in reversed(cells)}.values()
    again = [Job(cell, BASELINE, seed, in_another_order=True) for cell in alike for seed in seeds]
    return [*(Job(cell, name, seed) for cell in cells for name in strategies for seed in seeds), *again]


def rows(found: Mapping[Job, Record], metrics: Mapping[str, Metric]) -> list[Row]:
    """One for each cell and strategy that was run in it, allreduce first. `metrics` says what a workload's is. Each is
    compared with allreduce on the seeds that both were run with."""
    by_cell: dict[Cell, dict[str, dict[int, Record]]] = {}
    for job, record in sorted(found.items(), key=lambda item: item[0].seed):
        name = AGAIN if job.in_another_order else job.strategy
        by_cell.setdefault(job.cell, {}).setdefault(name, {})[job.seed] = record
    made = []
    for cell, strategies in by_cell.items():
        baseline = strategies.get(BASELINE, {})
        for name, runs in strategies.items():
            if seeds := [seed for seed in runs if seed in baseline]:
                of_both = [runs[seed] for seed in seeds], [baseline[seed] for seed in seeds]
                made.append(_row(cell, name, *of_both, metrics[cell.workload]))
    return made


def _row(cell: Cell, name: str, runs: list[Record], baseline: list[Record], metric: Metric) -> Row:
    row: Row = {"cell": cell.name, "strategy": name, "imbalance": cell.imbalance, "is_share": metric.is_share}
    for word in ("refused", "failed"):
        if (reason := next((run[word] for run in runs if word in run), None)) is not None:
            return {**row, word: reason}
    ours, theirs = _mean(runs), _mean(baseline)
    row |= {
        "metric": ours,
        "of_seeds": [run["metric"] for run in runs],
        "late_share": fmean(run["late_share"] for run in runs),
        "seconds": fmean(run["seconds"] for run in runs),
        "diverged": any(_has_diverged(*pair, metric) for pair in zip(runs, baseline, strict=True)),
        "distance": None,
        "target_s": None,
    }
    if theirs is not None:
        row["target_s"] = seconds_to(target_of(baseline, theirs, metric), mean_curve(runs), metric)
        row["distance"] = distance(ours, theirs, metric) if ours is not None else None
    return row


def distance(ours: float, theirs: float, metric: Metric) -> float:
    """How much better ours is: points of a share, else per cent of theirs."""
    better = ours - theirs if metric.higher_is_better else theirs - ours
    return 100 * better if metric.is_share else 100 * better / abs(theirs)


def _mean(runs: Sequence[Record]) -> float | None:
    """None where a run ended with a number that is not finite."""
    values = [run["metric"] for run in runs]
    return None if None in values else fmean(values)


def _has_diverged(run: Record, baseline: Record, metric: Metric) -> bool:
    """Some number is not finite, or less than half of allreduce's way from the untrained model is made at the end."""
    if any(value is None for _, _, value in run["curve"]):
        return True
    begin, end = run["curve"][0][2], baseline["metric"]
    if end is None or metric.is_reached(begin, end):  # allreduce has learned nothing, either
        return bool(metric.is_reached(begin, run["metric"]) and begin != run["metric"])
    return bool((run["metric"] - begin) / (end - begin) < HALF)


def target_of(baseline: Sequence[Record], final: float, metric: Metric) -> float:
    if metric.is_share:
        return TARGET * final
    untrained = fmean(run["curve"][0][2] for run in baseline)
    return untrained + TARGET * (final - untrained)


def mean_curve(runs: Sequence[Record]) -> list[tuple[float, float]]:
    """Seconds and metric, means over the runs at equal shares of the work."""
    if any(value is None for run in runs for _, _, value in run["curve"]):
        return []
    shares = [share for share, _, _ in runs[0]["curve"]]
    tables = [np.array(run["curve"]).T for run in runs]
    seconds, values = (
        np.mean([np.interp(shares, table[0], table[column]) for table in tables], axis=0) for column in (1, 2)
    )
    return list(zip(map(float, seconds), map(float, values), strict=True))


def seconds_to(target: float, curve: Sequence[tuple[float, float]], metric: Metric) -> float | None:
    """When the mean curve first reaches it, on a straight line between its points. None if it never does."""
    before: tuple[float, float] | None = None
    for now in curve:
        if metric.is_reached(now[1], target):
            if before is None or now[1] == before[1]:
                return now[0]
            return before[0] + (now[0] - before[0]) * (target - before[1]) / (now[1] - before[1])
        before = now
    return None


# -- in short ----------------------------------------------------------------------------------------------------------


def verdicts(found: Sequence[Row]) -> list[Row]:
    """One for each strategy, over all of its cells; what was refused in some of them is said."""
    baseline = {row["cell"]: row for row in found if row["strategy"] == BASELINE}
    best_s = {cell: _best_s(cell, found) for cell in baseline}
    names = dict.fromkeys(row["strategy"] for row in found)
    return [_verdict(name, [r for r in found if r["strategy"] == name], baseline, best_s) for name in names]


def _best_s(cell: str, found: Iterable[Row]) -> float | None:
    times = [row["target_s"] for row in found if row["cell"] == cell and row["strategy"] != AGAIN and "metric" in row]
    return min((seconds for seconds in times if seconds is not None), default=None)


def _verdict(name: str, mine: list[Row], baseline: Mapping[str, Row], best_s: Mapping[str, float | None]) -> Row:
    trained = [row for row in mine if "metric" in row and baseline[row["cell"]].get("metric") is not None]
    judged = [row for row in trained if row["distance"] is not None]
    worst = min(trained, key=lambda row: bars(row) if row["distance"] is not None else -math.inf, default=None)
    late = [row for row in trained if row["imbalance"] not in BALANCED]
    balanced = [row for row in trained if row["imbalance"] in BALANCED]

    def speeds(rows: Iterable[Row], against: Mapping[str, float | None]) -> list[float]:
        return [_ratio(against[row["cell"]], row["target_s"]) for row in rows]

    baseline_s = {cell: row["target_s"] for cell, row in baseline.items()}
    return {
        "strategy": name,
        "cells": len(trained),
        "seeds": sorted({len(row["of_seeds"]) for row in trained}),
        "refused": sum("refused" in row for row in mine),
        "failed": sum("failed" in row for row in mine),
        "within": sum(bars(row) >= -1 for row in judged) / len(trained) if trained else None,
        "worst": worst and {key: worst[key] for key in ("cell", "distance", "is_share")},
        "diverged": [r["cell"] for r in trained if r["diverged"] and not baseline[r["cell"]]["diverged"]],
        "faster": _median(speeds(late, baseline_s)),
        "faster_balanced": min(speeds(balanced, baseline_s), default=None),
        "of_best": _median(speeds(trained, best_s)),
        "of_best_least": min(speeds(trained, best_s), default=None),
        "never": sum(row["target_s"] is None for row in trained),
    }


def bars(row: Row) -> float:
    """A distance in units of what counts as as good."""
    return float(row["distance"]) / BARS[row["is_share"]]


def _ratio(base: float | None, mine: float | None) -> float:
    """How many times as soon; 0 for never."""
    return base / mine if base is not None and mine else 0.0


def _median(values: list[float]) -> float | None:
    return median(values) if values else None
