"""Draws what `bench.stopped_rank` measured, with plotly in a headless Chromium. Owns every line of the picture."""

from __future__ import annotations

import math
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

WIDTH, HEIGHT = 1200, 860
INK, MUTED, SHADE = "#222222", "#666666", "rgba(0,0,0,0.07)"
OURS, GLOO, DETECTED, STOPPED = "#0072B2", "#D55E00", "#009E73", "#999999"  # of Okabe and Ito
HEARTBEAT_S = 5.0  #: torchft's, after which a replica counts as lost; published, not measured
TITLES = (
    "<b>outpace, eager-majority</b>: measured",
    "<b>DDP on Gloo</b>: measured",
    "<b>a system that detects failures</b>: NOT measured, drawn from torchft's published heartbeat timeout of 5 s",
)
SECONDS = 30


def draw(found: dict[str, Any], path: Path) -> None:
    """Writes a PNG."""
    figure = make_subplots(rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.085, subplot_titles=TITLES)
    for row, (name, colour) in enumerate((("outpace", OURS), ("ddp", GLOO)), start=1):
        by_rank = list(enumerate(found[name]["steps"]))
        for rank, steps in sorted(by_rank, key=lambda each: each[0] != found["victim"]):  # the others in front of it
            is_victim = rank == found["victim"]
            figure.add_trace(_stairs(steps, STOPPED if is_victim else colour, "dot" if is_victim else "solid"), row, 1)
        _shade(figure, row, *found[name]["stopped"])
    began, ended = found["ddp"]["stopped"]
    figure.add_trace(_stairs(_detected(found["compute_s"], began, ended), DETECTED, "dash"), 3, 1)
    _shade(figure, 3, began, ended)
    _words(figure, found)
    figure.update_yaxes(
        type="log",
        range=[1.1, 4.25],
        tickvals=[20, 100, 1000, 5000],
        ticktext=["20 ms", "100 ms", "1 s", "5 s"],
        gridcolor="#dddddd",
        title={"text": "time of a step", "font": {"size": 14}},
    )
    figure.update_xaxes(range=[0, SECONDS], dtick=5, gridcolor="#eeeeee", ticksuffix=" s", showticklabels=True)
    figure.update_annotations(selector={"xanchor": "center"}, x=0, xanchor="left", font={"size": 16, "color": INK})
    figure.update_layout(
        title={"text": "Four ranks, 20 ms of computing a step; one rank is stopped for 5 s", "font": {"size": 22}},
        font={"family": "DejaVu Sans, sans-serif", "size": 14, "color": INK},
        width=WIDTH,
        height=HEIGHT,
        margin={"l": 90, "r": 30, "t": 100, "b": 50},
        showlegend=False,
        paper_bgcolor="white",
        plot_bgcolor="white",
    )
    _screenshot(figure, path)


def _stairs(steps: list[list[float]], colour: str, dash: str) -> go.Scatter:
    """Each step lasts from its beginning to its end, at the height of its duration."""
    x = [at for began, ended in steps for at in (began, ended)]
    y = [1e3 * (ended - began) for began, ended in steps for _ in range(2)]
    return go.Scatter(x=x, y=y, mode="lines", line={"color": colour, "width": 1.6, "dash": dash})


def _detected(compute_s: float, began: float, ended: float) -> list[list[float]]:
    """Steps without any overhead; the one in which the rank is lost takes until it wakes or counts as lost."""
    steps, at = [], 0.0
    while at < SECONDS:
        pause = min(HEARTBEAT_S, ended - began) if at <= began < at + compute_s else 0.0
        steps.append([at, at + compute_s + pause])
        at = steps[-1][1]
    return steps


def _shade(figure: go.Figure, row: int, began: float, ended: float) -> None:
    figure.add_vrect(x0=began, x1=ended, row=row, col=1, fillcolor=SHADE, line_width=0, layer="below")


def _words(figure: go.Figure, found: dict[str, Any]) -> None:
    began, ended = found["outpace"]["stopped"]
    _say(figure, 1, (began + ended) / 2, 400, f"rank {found['victim']} is stopped<br>the others go on")
    _say(figure, 1, ended + 0.4, 2200, "its own step (dotted) lasts as long as it was stopped", "left")
    began, ended = found["ddp"]["stopped"]
    _say(figure, 2, (began + ended) / 2, 400, "all wait for it")
    words = (
        "as long as it takes to detect, or the stop if that is shorter.<br>Had the rank died: torchft 5 s, and up to "
        "60 s to join<br>again; NCCL RAS 20 to 60 s; c10d on Gloo 30 minutes"
    )
    _say(figure, 3, ended + 0.4, 1500, words, "left")


def _say(figure: go.Figure, row: int, x: float, y: float, words: str, side: str = "center") -> None:
    look = {"text": words, "showarrow": False, "font": {"size": 14, "color": MUTED}}
    anchor = "left" if side == "left" else "auto"
    figure.add_annotation(x=x, y=math.log10(y), xanchor=anchor, align=side, row=row, col=1, **look)


def _screenshot(figure: go.Figure, path: Path) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("chromium is not installed: the data was written, the picture was not")
    with tempfile.TemporaryDirectory() as directory:
        page = Path(directory, "page.html")
        body = figure.to_html(full_html=True, include_plotlyjs=True, config={"staticPlot": True})
        page.write_text(body.replace("<body>", '<body style="margin:0">'))
        command = [chromium, "--headless", "--no-sandbox", "--hide-scrollbars", f"--user-data-dir={directory}/profile"]
        command += [f"--screenshot={path}", f"--window-size={WIDTH},{HEIGHT}", "--virtual-time-budget=5000"]
        done = subprocess.run([*command, page.as_uri()], capture_output=True, timeout=120)
    if not path.exists():
        raise SystemExit(f"chromium made no picture: {done.stderr.decode()[-500:]}")
