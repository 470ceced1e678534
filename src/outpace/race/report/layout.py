"""What all charts have in common. Owns fonts, axes and margins; knows no race.

Colours are CSS variables, which the page's script resolves when it draws, so that charts follow light and dark.
"""

from __future__ import annotations

import html
import re
from typing import Any

import plotly.graph_objects as go

from outpace.race.report.colours import CLEAR, GRID, HOVER, INK, MUTED

MOST_POINTS = 300  #: of a curve; more cannot be seen
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def figure(traces: list[Any], height: int, **layout: Any) -> dict[str, Any]:
    """A chart as plain values, ready for JSON."""
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
    chart = go.Figure(data=traces, layout={**base, **layout})
    plain: dict[str, Any] = chart.to_plotly_json()
    return {"data": plain["data"], "layout": plain["layout"]}


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    """An axis with quiet lines."""
    look = {"gridcolor": GRID, "linecolor": GRID, "zeroline": False, "automargin": True, "fixedrange": True}
    fonts = {"tickfont": {"color": MUTED, "size": 12}}
    if title:
        fonts["title"] = {"text": label(title), "font": {"color": MUTED, "size": 12}, "standoff": 8}
    return {**look, **fonts, **more}


def label(text: str) -> str:
    """Plotly reads tags in texts: what a name has of them must be shown, not obeyed."""
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
    """Evenly fewer of them; the first and the last stay."""
    if len(points) <= most:
        return points
    step = (len(points) - 1) / (most - 1)
    return [points[round(index * step)] for index in range(most)]
