"""`python -m bench.learning`: trains all cells under all strategies, and says what becomes of learning."""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bench import results_file
from bench.learning import cells, tune, verdict
from bench.learning.page import put_into, tables
from bench.learning.runs import Job, Record, all_made, kept
from bench.learning.tasks import Task
from outpace.strategies import names
from outpace.workloads import Metric

HERE = Path(__file__).parents[1]
RESULTS, PAGE = HERE / "learning.json", HERE.parent / "docs" / "learning.md"
DESCRIPTION = """
Whether training learns as well as if all had waited, and how soon: real gradients in simulated time, every strategy at
its defaults and at allreduce's learning rate. Runs are kept in runs/learning under a hash of their code and cell, so
that only what was changed is run again, and Ctrl-C loses nothing that was done. The whole set writes
bench/learning.json and the tables of docs/learning.md; a part of it is printed.
"""
WORST_BARS = 5.0  #: 2.5 points, 10 % of a loss: what `--check` lets pass on its few seeds


def main(given: list[str] | None = None) -> int:
    """Returns the exit code: 130 after Ctrl-C, 1 where a run failed or a check did."""
    arguments = _arguments(given)
    if arguments.render:
        put_into(arguments.page or PAGE, tables(results_file.read(arguments.results or RESULTS)))
        return 0
    try:
        return _tune(arguments) if arguments.tune else _measure(arguments)
    except KeyboardInterrupt:
        print("interrupted; what was done is kept in runs/learning", file=sys.stderr)
        return 130


def _measure(arguments: argparse.Namespace) -> int:
    chosen = cells.picked(arguments.only)
    jobs = verdict.jobs(chosen, arguments.strategies, range(cells.FIRST_SEED, cells.FIRST_SEED + arguments.seeds))
    found = {job: record for job in jobs if (record := kept(job))} if arguments.kept else _made(jobs, arguments.jobs)
    results = {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "torch": torch.__version__.partition("+")[0],
        "seeds": arguments.seeds,
        "whole": arguments.whole,
        "cpu_s": sum(record.get("cpu_s", 0.0) for record in found.values()),
        "rows": verdict.rows(found, _metrics(jobs)),
    }
    made = tables(results)
    print(made, flush=True)
    if arguments.results is not None:
        results_file.write(arguments.results, results)
    if arguments.page is not None:
        put_into(arguments.page, made)
    complaints = [*_failures(results["rows"]), *(_complaints(results["rows"]) if arguments.check else [])]
    print("\n".join(complaints), end="\n" if complaints else "", file=sys.stderr)
    return 1 if complaints else 0


def _tune(arguments: argparse.Namespace) -> int:
    jobs = tune.jobs(arguments.only, arguments.seeds)
    print(tune.table(_made(jobs, arguments.jobs), _metrics(jobs)))
    return 0


def _made(jobs: Sequence[Job], workers: int) -> dict[Job, Record]:
    """With a bar on standard error, where that is a terminal."""
    columns = (TextColumn("{task.description:<50}", markup=False), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as progress:
        bar = progress.add_task("reading what is kept", total=len(jobs))
        return all_made(
            jobs,
            workers,
            lambda job: progress.update(bar, advance=1, description=f"{job.cell.name} {job.strategy}"),
        )


def _metrics(jobs: Sequence[Job]) -> dict[str, Metric]:
    """What each workload is measured by."""
    found: dict[str, Metric] = {}
    for job in jobs:
        cell = job.cell
        if cell.workload not in found:
            found[cell.workload] = Task(cell.workload, cell.optimizer, cell.learning_rate, 0, False).metric
    return found


def _failures(rows: Sequence[verdict.Row]) -> list[str]:
    return [f"{row['strategy']} failed in {row['cell']}: {row['failed']}" for row in rows if "failed" in row]


def _complaints(rows: Sequence[verdict.Row]) -> list[str]:
    """In words, of what must learn as allreduce does."""
    return [
        f"{row['strategy']} {'diverged' if row['diverged'] else 'learned much less than allreduce'} in {row['cell']}: "
        f"{row['metric']}, of the seeds {row['of_seeds']}"
        for row in rows
        if row["strategy"] in cells.CHECKED and "metric" in row
        if row["diverged"] or row["distance"] is None or verdict.bars(row) < -WORST_BARS
    ]


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.learning", description=DESCRIPTION)
    option = parser.add_argument
    option("--only", nargs="+", metavar="CELL", help="cells by name, with * and ?: 'digits/*' '*/random/*' table-a")
    option("--strategies", nargs="+", metavar="NAME", help="by name, with * and ?, or with options behind a colon")
    option("--seeds", type=int, metavar="N", help=f"how many ({cells.SEEDS}; {cells.QUICK_SEEDS} with --quick)")
    option("--quick", action="store_true", help="a few cells, in some minutes")
    option("--check", action="store_true", help=f"fail where {', '.join(cells.CHECKED)} do not learn as allreduce does")
    option("--tune", action="store_true", help="find allreduce's best learning rates instead, on other seeds")
    option("--kept", action="store_true", help="run nothing: say what the runs that are kept say")
    option("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes (%(default)s)")
    option("--render", action="store_true", help="run nothing, write the page again from the results")
    option("--results", type=Path, metavar="FILE", help="the JSON (bench/learning.json; none of a part)")
    option("--page", type=Path, metavar="FILE", help="the page (docs/learning.md; none of a part)")
    arguments = parser.parse_args(given)
    return _with_defaults(arguments, parser)


def _with_defaults(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> argparse.Namespace:
    chosen = (arguments.only, arguments.strategies, arguments.seeds)
    arguments.whole = not arguments.quick and chosen == (None, None, None)
    if arguments.whole and not (arguments.tune or arguments.render):
        arguments.results, arguments.page = arguments.results or RESULTS, arguments.page or PAGE
    quick: dict[str, Any] = {"only": cells.QUICK, "strategies": cells.CHECKED, "seeds": cells.QUICK_SEEDS}
    usual: dict[str, Any] = {"only": ["*"], "strategies": cells.STRATEGIES, "seeds": cells.SEEDS}
    for name, value in (quick if arguments.quick else usual).items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
        elif name == "strategies":
            _check_names(arguments.strategies, parser)
    arguments.strategies = _strategies(arguments.strategies)
    for pattern in arguments.only:
        if not cells.picked([pattern]):
            parser.error(f"no cell is called {pattern!r}; there are {', '.join(c.name for c in cells.picked(['*']))}")
    if arguments.seeds < 1 or arguments.jobs < 1:
        parser.error("--seeds and --jobs need at least 1")
    return arguments


def _check_names(patterns: Sequence[str], parser: argparse.ArgumentParser) -> None:
    for pattern in patterns:
        if not _strategies([pattern]):
            parser.error(f"no strategy is called {pattern!r}; there are {', '.join(names())}")


def _strategies(patterns: Sequence[str]) -> list[str]:
    """Those that exist, in the order they were asked for."""
    found = [
        name
        for pattern in patterns
        for name in ([pattern] if pattern.partition(":")[0] in names() else names())
        if name == pattern or fnmatchcase(name, pattern)
    ]
    return list(dict.fromkeys(found))


if __name__ == "__main__":
    sys.exit(main())
