"""The tables of docs/learning.md. Owns where they stand among prose that people write, and how figures are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.learning.cells import (
    CHOSEN,
    LEARNING_RATES,
    MICROBATCHES,
    SIZES,
    TABLE_A,
    TABLE_A_COMPUTE_MS,
    TABLE_A_STEPS,
    TABLE_A_WORST,
)
from bench.learning.tasks import BALANCED, SHARED_DATA, names_of
from bench.learning.verdict import AGAIN, BARS, TARGET, Row, bars, verdicts
from bench.page import environment
from outpace.simulation import BASELINE

BEGIN, END = "<!-- tables: made by `make learning`; edit what is around them -->", "<!-- end of the tables -->"
NEVER = "never"


def tables(results: dict[str, Any]) -> str:
    """All tables, from the figures alone."""
    rows: list[Row] = results["rows"]
    judged = [row for row in rows if not row["cell"].startswith(TABLE_A)]
    return (
        environment()
        .get_template("learning.md.j2")
        .render(
            results=results,
            verdicts=[_in_words(verdict) for verdict in verdicts(judged)],
            distances=_by_cell(judged, _distance),
            speeds=_by_cell(judged, _speed),
            table_a=_table_a([row for row in rows if row["cell"].startswith(TABLE_A)]),
            imbalances=names_of(row["imbalance"] for row in rows),
            tasks=[{"workload": w, "optimizer": o, "rate": LEARNING_RATES[w, o], **vars(SIZES[w])} for w, o in CHOSEN],
            again=AGAIN,
            baseline=BASELINE,
            bars=BARS,
            target=TARGET,
            balanced=BALANCED,
            constants={
                "shared": SHARED_DATA,
                "microbatches": MICROBATCHES,
                "steps": TABLE_A_STEPS,
                "compute_ms": TABLE_A_COMPUTE_MS,
                "worst": TABLE_A_WORST,
            },
        )
        .strip()
    )


def put_into(path: Path, made: str) -> None:
    """Between the markers of a page that exists, and nowhere else."""
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{path} has no place for the tables: put the lines {BEGIN!r} and {END!r} where they belong")
    path.write_text(f"{before}{BEGIN}\n\n{made}\n\n{END}{after}", encoding="utf-8")


def _in_words(verdict: Row) -> Row:
    worst, is_again = verdict["worst"], verdict["strategy"] == AGAIN

    def times(value: float | None) -> str:
        return "-" if value is None or is_again else NEVER if not value else f"{value:.2f}x"

    return {
        **verdict,
        "within": "-" if verdict["within"] is None else f"{verdict['within']:.0%}",
        "worst": "-" if worst is None else f"{_unit(worst)} in {worst['cell']}",
        "diverged": len(verdict["diverged"]),
        "seeds": " to ".join(dict.fromkeys(str(verdict["seeds"][i]) for i in (0, -1))) if verdict["seeds"] else "-",
        "reached": verdict["cells"] - verdict["never"],
        **{name: times(verdict[name]) for name in ("faster", "faster_balanced", "of_best", "of_best_least")},
    }


def _unit(row: Row) -> str:
    if row["distance"] is None:
        return "not finite"
    return f"{round(row['distance'], 1) + 0.0:+.1f} {'points' if row['is_share'] else '%'}"


def _by_cell(rows: list[Row], say: Any) -> dict[str, Any]:
    """A table: cells down, strategies across, allreduce itself first."""
    names = [name for name in dict.fromkeys(row["strategy"] for row in rows) if name != AGAIN]
    cells: dict[str, dict[str, Row]] = {}
    for row in rows:
        cells.setdefault(row["cell"], {})[row["strategy"]] = row
    lines = [
        [cell, *(say(found[name], found[BASELINE]) if name in found else "-" for name in names)]
        for cell, found in cells.items()
    ]
    return {"names": names, "lines": lines}


def _distance(row: Row, baseline: Row) -> str:
    if "metric" not in row:
        return "refused" if "refused" in row else "failed"
    if row is baseline:
        return _metric(row)
    marked = row["diverged"] or row["distance"] is None or bars(row) < -1
    text = _unit(row) + (", diverged" if row["diverged"] else "")
    return f"**{text}**" if marked else text


def _metric(row: Row) -> str:
    if row["metric"] is None:
        return "not finite"
    return f"{100 * row['metric']:.1f} %" if row["is_share"] else f"{row['metric']:.3g}"


def _speed(row: Row, baseline: Row) -> str:
    if "metric" not in row:
        return "-"
    if row is baseline:
        return f"{row['target_s']:.1f} s" if row["target_s"] is not None else NEVER
    if row["target_s"] is None or baseline["target_s"] is None:
        return NEVER
    return f"{baseline['target_s'] / row['target_s']:.2f}x, {row['late_share']:.0%} late"


def _table_a(rows: list[Row]) -> dict[str, Any] | None:
    """Strategies down, learning rates across: the mean loss, and how many times allreduce's it is."""
    if not rows:
        return None
    rates = list(dict.fromkeys(row["cell"] for row in rows))
    base = {row["cell"]: row for row in rows if row["strategy"] == BASELINE}
    found = {(row["strategy"], row["cell"]): row for row in rows}
    names = dict.fromkeys(row["strategy"] for row in rows)
    lines = [[name, *(_loss(found.get((name, rate)), base[rate]) for rate in rates)] for name in names]
    return {"rates": [rate.partition("/")[2] for rate in rates], "lines": lines}


def _loss(row: Row | None, baseline: Row) -> str:
    if row is None or "metric" not in row:
        return "-"
    if row["metric"] is None or baseline["metric"] is None:
        return "**not finite**"
    times = row["metric"] / baseline["metric"]
    text = f"{row['metric']:.2f}" if row is baseline else f"{row['metric']:.2f} ({times:.2f}x)"
    return f"**{text}**" if times > TABLE_A_WORST else text
