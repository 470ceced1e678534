"""What all charts have in common: fonts, axes, margins, and who has which colour. A chart is what plotly.js takes.

Colours are CSS variables, which the page's script resolves when it draws, so that charts follow light and dark. Their
values are in page.css: Okabe and Ito's hues, which people with any kind of colour vision can tell apart. Grey is the
baseline's alone.
"""

from __future__ import annotations

import html
import re
from typing import Any, NamedTuple

from outpace.race.result import Race

MOST_POINTS = 300  #: of a curve; more cannot be seen
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
HUES = 6  #: besides grey; page.css has as many
INK, MUTED, GRID, SURFACE, HOVER = (f"var(--{name})" for name in ("ink", "muted", "grid", "surface", "raised"))
WAIT, WAIT_LINE, APPLY, ARROW = (f"var(--{name})" for name in ("wait", "wait-line", "apply", "arrow"))
CLEAR = "rgba(0,0,0,0)"


Chart = dict[str, Any]  #: plain values, ready for JSON


def bars(**look: Any) -> Chart:
    return {"type": "bar", **look}


def lines(**look: Any) -> Chart:
    return {"type": "scatter", **look}


def figure(traces: list[Chart], height: int, **layout: Any) -> Chart:
    base = {
        "template": {},
        "height": height,
        "autosize": True,
        "margin": {"l": 8, "r": 12, "t": 8, "b": 8},
        "font": {"family": FONT, "size": 13, "color": INK},
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "showlegend": False,
        "hoverlabel": {"bgcolor": HOVER, "bordercolor": GRID, "font": {"color": INK, "size": 13}, "namelength": -1},
    }
    return {"data": traces, "layout": {**base, **layout}}


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    look = {"gridcolor": GRID, "linecolor": GRID, "zeroline": False, "automargin": True, "fixedrange": True}
    fonts = {"tickfont": {"color": MUTED, "size": 12}}
    if title:
        fonts["title"] = {"text": label(title), "font": {"color": MUTED, "size": 12}, "standoff": 8}
    return {**look, **fonts, **more}


def label(text: str) -> str:
    """Escapes tags, which plotly would interpret."""
    return html.escape(text, quote=False)


def wrapped(text: str, width: int = 18, most: int = 3) -> str:
    """A name in short lines, broken behind its punctuation where it has some, for axes of narrow screens."""
    lines = [""]
    for piece in re.findall(r"[^\s:,]+[\s:,]*|[\s:,]+", text):
        if lines[-1] and len(lines[-1] + piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    cut = [line.strip() if len(line.strip()) <= width + 4 else f"{line[: width + 3]}…" for line in lines]
    return "<br>".join(map(label, cut[:most] if len(cut) <= most else [*cut[: most - 1], "…"]))


def thinned(points: list[Any], most: int = MOST_POINTS) -> list[Any]:
    """Evenly fewer points; keeps the first and the last."""
    if len(points) <= most:
        return points
    step = (len(points) - 1) / (most - 1)
    return [points[round(index * step)] for index in range(most)]


def hatched() -> dict[str, Any]:
    """The marker of waiting, and of what is lost."""
    pattern = {"shape": "/", "fgcolor": WAIT_LINE, "bgcolor": WAIT, "size": 5, "solidity": 0.25, "fillmode": "replace"}
    return {"color": WAIT, "pattern": pattern}


class Look(NamedTuple):
    """How a system is drawn, in every chart."""

    colour: str
    dash: str = "solid"  #: of its lines
    pattern: str = ""  #: of its bars: tells systems apart when the hues have run out


def looks(race: Race) -> dict[str, Look]:
    """For each system by its name, also for those that failed: colours do not change when one does."""
    baseline = race.baseline.system if race.baseline else None
    others = [entry.system for entry in race.entries if entry.system != baseline]
    found = {system: _look(place) for place, system in enumerate(others)}
    return found if baseline is None else {baseline: Look("var(--s0)"), **found}


def _look(place: int) -> Look:
    again, hue = divmod(place, HUES)
    colour = f"var(--s{hue + 1})"
    return Look(colour) if not again else Look(colour, "dash" if again == 1 else "dot", "/" if again == 1 else "x")
