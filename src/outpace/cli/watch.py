"""`outpace watch`: a running job, as it runs. Owns its options, how the job is drawn, and when the watch ends."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live as Screen
from rich.text import Text

from outpace.errors import TraceInvalid
from outpace.observe.figures import late_share
from outpace.observe.live import Follower, Live, RankLive, check_directory, current_run
from outpace.race.directory import load
from outpace.version import __version__

LOOK_EVERY_S = 0.25
BAR = 16  #: characters of the longest rank's step
COMPUTING, WAITING = "█", "░"
NAMES = ("compute ms", "wait ms", "late now", "share", "steps", "steps/s", "loss")
WIDTHS = (10, 7, 9, 5, 6, 7, 7)
STATES = {"synchronize": "syncing", "finish": "finishing", "cut": "unknown"}  #: what stands where a rank is not late
QUIET_S = 5.0  #: of silence before it is mentioned


def run(arguments: argparse.Namespace) -> int:
    path = Path(arguments.path)
    check_directory(path)
    console = Console(highlight=False, markup=False, emoji=False)
    if arguments.json:
        print(json.dumps({"outpace": __version__, **Follower(current_run(path)).poll().to_json()}, indent=2))
    elif arguments.once:
        console.print(view(Follower(current_run(path)).poll()), soft_wrap=not console.is_terminal)  # paths stay whole
    elif console.is_terminal:
        _on_screen(path, console)
    else:
        _in_lines(path, console, arguments.every)
    return 0


def _on_screen(path: Path, console: Console) -> None:
    shown = Text(waiting(str(path)))
    with Screen(shown, console=console, auto_refresh=False) as screen:
        for live in lives(path):
            screen.update(view(live), refresh=True)
            last = live
    console.print(ended(last))


def _in_lines(path: Path, console: Console, every_s: float) -> None:
    """A line when a run is first seen, one now and then, and one at its end."""
    said, directory = 0.0, ""
    for live in lives(path):
        now = time.monotonic()
        if live.directory != directory or now >= said + every_s:
            said, directory = now, live.directory
            console.print(line(live), soft_wrap=True)
    console.print(ended(live), soft_wrap=True)


def lives(path: Path) -> Iterator[Live]:
    """The run in this directory, looked at again and again until it has ended; in a race's, one after the other."""
    follower = Follower(current_run(path))
    while True:
        current = current_run(path)
        if current != follower.directory:
            follower = Follower(current)
        live = follower.poll()
        yield live
        if live.has_ended and (current == path or _is_race_over(path)):
            return
        time.sleep(LOOK_EVERY_S)


def _is_race_over(path: Path) -> bool:
    """Whether no other system will begin. A directory of several jobs that is not a race ends with the latest."""
    try:
        return load(path).is_over
    except TraceInvalid:
        return True


def view(live: Live) -> RenderableType:
    if not live.has_begun:
        return Text(waiting(live.directory))
    late = Text(_late(live), style="bold yellow" if live.late_rank is not None else "")
    elsewhere = [Text(live.elsewhere_words, style="yellow")] if live.elsewhere_words else []
    return Group(Text(_head(live)), late, *elsewhere, _ranks(live))


def line(live: Live) -> str:
    if not live.has_begun:
        return waiting(live.directory)
    steps = [rank.steps for rank in live.ranks]
    made = f"{min(steps):,} to {max(steps):,} steps" if min(steps) != max(steps) else f"{steps[0]:,} steps"
    return ", ".join(filter(None, [made, *_speeds(live), _late(live), live.elsewhere_words]))


def waiting(directory: str) -> str:
    return f"waiting for the first step in {directory}"


def ended(live: Live) -> str:
    steps = sum(rank.steps for rank in live.ranks)
    stopped, cut = ([str(rank.rank) for rank in live.ranks if rank.state == state] for state in ("stopped", "cut"))
    if stopped:
        who = "all ranks were" if len(stopped) == len(live.ranks) else f"rank {', '.join(stopped)} was"
        words = f"{who} stopped before finish(), by Ctrl-C or an error: {steps:,} steps in {live.seconds:.1f} s"
    else:
        words = f"all {len(live.ranks)} ranks have finished: {steps:,} steps in {live.seconds:.1f} s"
    if cut:
        words += f"; the recording of rank {', '.join(cut)} ended before its training did"
    return words if live.loss is None else f"{words}, loss {live.loss:.4g}"


def _head(live: Live) -> str:
    known = f"{len(live.ranks)} of {live.world}" if len(live.ranks) != live.world else f"{live.world}"
    return f"{live.strategy}, {known} ranks, {live.seconds:.0f} s: {', '.join(_speeds(live))}"


def _speeds(live: Live) -> list[str]:
    each = sum(rank.steps_per_s for rank in live.ranks) / len(live.ranks)
    words = [f"{_rate(each)} steps/s a rank" if live.rounds_per_s is None else f"{_rate(live.rounds_per_s)} rounds/s"]
    if live.samples_per_s is not None:
        words.append(f"{live.samples_per_s:,.0f} samples/s")
    if live.loss is not None:
        words.append(f"loss {live.loss:.4g}")
    if live.staleness:
        stale = late_share(live.staleness)
        words.append(f"{stale:.0%} stale (up to {max(live.staleness)})" if stale else "nothing stale")
    if live.skipped:
        words.append(f"{live.skipped} unreadable lines skipped")
    return words


def _late(live: Live) -> str:
    if live.silent_s is not None and live.silent_s > QUIET_S and live.late_rank is not None:
        return f"{live.late_words}; nothing was heard for {live.silent_s:.0f} s"
    return live.late_words


def _ranks(live: Live) -> Text:
    """A line for each, of 79 characters. By hand: a table of rich's costs ten times as much, four times a second."""
    longest_ms = max((_busy_ms(rank) for rank in live.ranks), default=0.0)
    legend = Text.assemble((COMPUTING, "green"), " compute ", (WAITING, "red"), " wait")
    lines = [_columns("rank", legend, *NAMES)]
    for rank in live.ranks:
        row = _columns(str(rank.rank), _bar(rank, longest_ms), *_figures(rank))
        if rank.rank == live.late_rank:
            row.stylize("bold")
        lines.append(row)
    return Text("\n", no_wrap=True, overflow="ellipsis").join(lines)


def _columns(rank: str, bar: Text, *figures: str) -> Text:
    bar.pad_right(BAR - len(bar))
    cells = [f"{figure:>{width}}" for figure, width in zip(figures, WIDTHS, strict=True)]
    return Text.assemble(f"{rank:>4} ", bar, " ", " ".join(cells))


def _figures(rank: RankLive) -> list[str]:
    return [
        "" if rank.compute_ms is None else f"{rank.compute_ms:.1f}",
        "" if rank.waited_ms is None else f"{rank.waited_ms:.1f}",
        _lateness(rank),
        "" if rank.share is None else f"{rank.share:.1%}",
        f"{rank.steps}",
        _rate(rank.steps_per_s) if rank.takes_steps else "",
        "" if rank.loss is None else f"{rank.loss:.4g}",
    ]


def _bar(rank: RankLive, longest_ms: float) -> Text:
    """A step: what it computes and what it waits, as long as its share of the longest."""
    scale = BAR / longest_ms if longest_ms else 0.0
    computing, whole = round((rank.compute_ms or 0.0) * scale), round(_busy_ms(rank) * scale)
    return Text.assemble((COMPUTING * computing, "green"), (WAITING * max(0, whole - computing), "red"))


def _busy_ms(rank: RankLive) -> float:
    return (rank.compute_ms or 0.0) + (rank.waited_ms or 0.0)


def _lateness(rank: RankLive) -> str:
    if rank.state != "running":
        return STATES.get(rank.state, rank.state)
    if rank.late_rounds:
        return f"{rank.late_rounds} round{'s' * (rank.late_rounds > 1)}"
    return f"{rank.late_ms:.1f} ms" if rank.late_ms else "-"


def _rate(per_s: float) -> str:
    return f"{per_s:.1f}" if per_s >= 1 else f"{per_s:.2f}"
