"""Allreduce's best learning rate for each workload and optimizer, on seeds that nothing else is measured with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from bench.learning.cells import CHOSEN, FIRST_SEED_OF_TUNING, LEARNING_RATES, SIZES, Cell, fits
from bench.learning.runs import Job, Record
from outpace.simulation import BASELINE
from outpace.workloads import Metric

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  #: of what is known; run it again where an end of the row is best


def jobs(patterns: Sequence[str], seeds: int) -> list[Job]:
    """Balanced ranks at several learning rates."""
    return [
        Job(replace(cell, learning_rate=cell.learning_rate * factor), BASELINE, FIRST_SEED_OF_TUNING + seed)
        for cell in _cells()
        if any(fits(cell.name, pattern) for pattern in patterns)
        for factor in FACTORS
        for seed in range(seeds)
    ]


def table(found: Mapping[Job, Record], metrics: Mapping[str, Metric]) -> str:
    """The mean metric at each learning rate, the best one marked."""
    by_cell: dict[str, dict[float, list[float | None]]] = {}
    for job, record in sorted(found.items(), key=lambda item: item[0].cell.learning_rate):
        rates = by_cell.setdefault(job.cell.name, {})
        rates.setdefault(job.cell.learning_rate, []).append(record.get("metric"))
    return "\n".join(_line(name, rates, metrics[name.partition("/")[0]]) for name, rates in by_cell.items())


def _line(name: str, rates: Mapping[float, Sequence[float | None]], metric: Metric) -> str:
    means = {rate: fmean(v for v in values if v is not None) for rate, values in rates.items() if None not in values}
    best = (max if metric.higher_is_better else min)(means, key=lambda rate: means[rate])
    shown = (
        f"{rate:g}: {metric.text(means[rate]) if rate in means else 'not finite'}{' (best)' if rate == best else ''}"
        for rate in rates
    )
    return f"{name:<20} {'   '.join(shown)}"


def _cells() -> list[Cell]:
    return [
        Cell(
            name=f"{workload}/{optimizer}",
            workload=workload,
            optimizer=optimizer,
            imbalance="none",
            learning_rate=LEARNING_RATES[workload, optimizer],
            ranks=SIZES[workload].ranks,
            steps=SIZES[workload].steps,
            points=1,
        )
        for workload, optimizer in CHOSEN
    ]
