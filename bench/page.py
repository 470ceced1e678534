"""docs/benchmarks.md from the JSON, and each section on its own for the terminal. Owns how figures are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2

from bench.sections import SECTIONS

TEMPLATES = Path(__file__).parent / "templates"
UNITS = {"ms": (1e3, " ms"), "s": (1.0, " s"), "times": (1.0, "x"), "percent": (100.0, " %"), "mb": (1e-6, " MB")}
ABSENT = "-"


def page(results: dict[str, Any]) -> str:
    """The whole page."""
    return environment().get_template("page.md.j2").render(names=SECTIONS, **results).strip() + "\n"


def section(name: str, record: dict[str, Any]) -> str:
    """One section of it."""
    template = environment().get_template(f"{name}.md.j2")
    return template.render(f=record["figures"], record=record, name=name).strip() + "\n"


def environment() -> jinja2.Environment:
    """What templates are rendered with: how figures are written is the same on every page."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,
    )
    environment.filters.update(unit=in_unit, spread=with_spread)
    environment.globals.update(section=section)
    return environment


def digits(value: float) -> str:
    """Three that matter.

    >>> digits(0.01234), digits(12.34), digits(1234.5)
    ('0.0123', '12.3', '1,234')
    """
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def in_unit(value: Any, unit: str) -> str:
    """A number, or the median of a figure.

    >>> in_unit(0.0123, "ms"), in_unit({"median": 0.5}, "percent")
    ('12.3 ms', '50 %')
    """
    if value is None:
        return ABSENT
    factor, name = UNITS[unit]
    return digits((value["median"] if isinstance(value, dict) else value) * factor) + name


def with_spread(figure: dict[str, Any] | None, unit: str) -> str:
    """The median, and between which values all samples lie.

    >>> with_spread({"median": 0.012, "low": 0.01, "high": 0.02, "samples": 3}, "ms")
    '12 ms (10 to 20)'
    """
    if figure is None or figure["samples"] == 1:
        return in_unit(figure, unit)
    low, high = (digits(figure[end] * UNITS[unit][0]) for end in ("low", "high"))
    return f"{in_unit(figure, unit)} ({low} to {high})"
