"""`python -m bench`: measures sections one after the other, prints them, and writes results.json and the page."""

from __future__ import annotations

import argparse
import datetime
import sys
from pathlib import Path
from typing import Any

from bench import results_file
from bench.machine import machine
from bench.page import page, section
from bench.run import Run
from bench.sections import SECTIONS, measure_of

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "results.json", HERE.parent / "docs" / "benchmarks.md"
DESCRIPTION = """
Measures outpace beside Gloo, Open MPI and torch's DDP on this machine: side by side in one run, alternating and
repeated. Compare ratios, not milliseconds of different machines. Leave the machine alone meanwhile. Progress goes to
standard error, each section to standard output when it is done; all together to bench/results.json and
docs/benchmarks.md. Ctrl-C ends it: sections that were finished are kept, the one under way is shown as far as it came.
"""


def main(given: list[str] | None = None) -> int:
    """Returns the exit code: 130 after Ctrl-C."""
    arguments = _arguments(given)
    if arguments.render:
        _write_page(results_file.read(arguments.results or RESULTS), arguments.page or PAGE)
        return 0
    run = Run(1 if arguments.quick else arguments.repeat, arguments.quick)
    results = _known(arguments)
    if results is None:
        return 2
    try:
        for name in arguments.only:
            _measure(name, run, results, arguments)
            if run.interrupted:
                break
    except KeyboardInterrupt:  # between two sections, or while one prepares
        run.interrupted = True
    return 130 if run.interrupted else 0


def _known(arguments: argparse.Namespace) -> results_file.Results | None:
    """What stays of earlier runs beside what is measured now; None, with a word, if the two do not go together."""
    here = machine()
    results = results_file.read(arguments.results) if arguments.results is not None else results_file.nothing()
    difference = results_file.difference(results, here)
    if difference is None:
        return {**results, "machine": here}
    if set(arguments.only) == set(SECTIONS):
        return {**results_file.nothing(), "machine": here}
    print(
        f"nothing was measured: the other sections' figures are of another machine or of other versions ({difference})."
        " Measure all sections, or write into other files with --results and --page",
        file=sys.stderr,
    )
    return None


def _measure(name: str, run: Run, results: dict[str, Any], arguments: argparse.Namespace) -> None:
    """One section. It is written at once, so that nothing is lost by what happens to the next."""
    run.say(f"{name}: {SECTIONS[name]}")
    figures = measure_of(name)(run)
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    record = {"repeat": run.repeat, "quick": run.quick, "date": today, "figures": figures}
    print(section(name, record), flush=True)
    if run.interrupted:
        run.say(f"{name}: interrupted; what is above is not complete, and was not written to a file")
        return
    results["sections"][name] = record
    if arguments.results is not None:
        results_file.write(arguments.results, results)
    if arguments.page is not None:
        _write_page(results, arguments.page)


def _write_page(results: dict[str, Any], path: Path) -> None:
    path.write_text(page(results), encoding="utf-8")


def _arguments(given: list[str] | None) -> argparse.Namespace:
    sections = "\n".join(f"  {name:<15}{about}" for name, about in SECTIONS.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=DESCRIPTION,
        epilog=f"sections:\n{sections}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = parser.add_argument
    option("--only", type=_names, default=list(SECTIONS), metavar="NAMES", help="sections, between commas; others keep")
    option("--repeat", type=int, default=5, metavar="N", help="how often everything is measured (%(default)s)")
    option("--quick", action="store_true", help="a minute or two, to see that everything works: writes no file")
    option("--render", action="store_true", help="measure nothing, write the page again from the results")
    option("--results", type=Path, metavar="FILE", help="the JSON (bench/results.json; none with --quick)")
    option("--page", type=Path, metavar="FILE", help="the page (docs/benchmarks.md; none with --quick)")
    arguments = parser.parse_args(given)
    if arguments.repeat < 1:
        parser.error(f"--repeat {arguments.repeat}: at least 1 is needed")
    if not arguments.quick:
        arguments.results, arguments.page = arguments.results or RESULTS, arguments.page or PAGE
    return arguments


def _names(text: str) -> list[str]:
    asked = text.replace("-", "_").split(",")
    for name in asked:
        if name not in SECTIONS:
            raise argparse.ArgumentTypeError(f"there is no section {name!r}; choose of {', '.join(SECTIONS)}")
    return [name for name in SECTIONS if name in asked]


if __name__ == "__main__":
    sys.exit(main())
