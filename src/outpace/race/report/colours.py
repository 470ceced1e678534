"""Who has which colour. Owns the palette's names; their values are in page.css, once for light and once for dark.

The hues are Okabe and Ito's, which people with any kind of colour vision can tell apart. Grey is the baseline's alone.
"""

from __future__ import annotations

from typing import NamedTuple

from outpace.race.result import Race

HUES = 6  #: besides grey; page.css has as many

INK, MUTED, GRID, SURFACE, HOVER = (f"var(--{name})" for name in ("ink", "muted", "grid", "surface", "raised"))
WAIT, WAIT_LINE, APPLY, ARROW = (f"var(--{name})" for name in ("wait", "wait-line", "apply", "arrow"))
CLEAR = "rgba(0,0,0,0)"


class Look(NamedTuple):
    """How a system is drawn, in every chart."""

    colour: str
    dash: str = "solid"  #: of its lines
    pattern: str = ""  #: of its bars: tells systems apart when the hues have run out


def looks(race: Race) -> dict[str, Look]:
    """For each system by its name, also for those that failed: colours do not move when one does."""
    baseline = race.baseline.system if race.baseline else None
    others = [entry.system for entry in race.entries if entry.system != baseline]
    found = {system: _look(place) for place, system in enumerate(others)}
    return found if baseline is None else {baseline: Look("var(--s0)"), **found}


def _look(place: int) -> Look:
    again, hue = divmod(place, HUES)
    colour = f"var(--s{hue + 1})"
    return Look(colour) if not again else Look(colour, "dash" if again == 1 else "dot", "/" if again == 1 else "x")
