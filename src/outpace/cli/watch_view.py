"""How a running job is drawn: a view for a terminal, a line for a log. Owns their wording; measures nothing."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.text import Text

from outpace.observe.figures import late_share
from outpace.observe.live import Live, RankLive

BAR = 16  #: characters of the longest rank's step
COMPUTING, WAITING = "█", "░"
NAMES = ("compute ms", "wait ms", "late now", "share", "steps", "steps/s", "loss")
WIDTHS = (10, 7, 9, 5, 6, 7, 7)
STATES = {"synchronize": "syncing", "finish": "finishing", "cut": "unknown"}  #: what stands where a rank is not late
QUIET_S = 5.0  #: of silence before it is mentioned


def view(live: Live) -> RenderableType:
    """The whole picture: what the run does, who is late, and a line for each rank."""
    if not live.has_begun:
        return Text(waiting(live.directory))
    late = Text(_late(live), style="bold yellow" if live.late_rank is not None else "")
    return Group(Text(_head(live)), late, _ranks(live))


def line(live: Live) -> str:
    """The same in one line."""
    if not live.has_begun:
        return waiting(live.directory)
    steps = [rank.steps for rank in live.ranks]
    made = f"{min(steps):,} to {max(steps):,} steps" if min(steps) != max(steps) else f"{steps[0]:,} steps"
    return ", ".join([made, *_speeds(live), _late(live)])


def waiting(directory: str) -> str:
    """While there is nothing to show."""
    return f"waiting for the first step in {directory}"


def ended(live: Live) -> str:
    """The last words on a run."""
    steps = sum(rank.steps for rank in live.ranks)
    words = f"all {len(live.ranks)} ranks have finished: {steps:,} steps in {live.seconds:.1f} s"
    cut = [str(rank.rank) for rank in live.ranks if rank.state == "cut"]
    if cut:
        words += f"; the recording of rank {', '.join(cut)} ended before its training did"
    return words if live.loss is None else f"{words}, loss {live.loss:.4g}"


def _head(live: Live) -> str:
    known = f"{len(live.ranks)} of {live.world}" if len(live.ranks) != live.world else f"{live.world}"
    return f"{live.strategy}, {known} ranks, {live.seconds:.0f} s: {', '.join(_speeds(live))}"


def _speeds(live: Live) -> list[str]:
    """How fast, how good and how stale, as far as that is known."""
    words = []
    if live.rounds_per_s is not None:
        words.append(f"{_rate(live.rounds_per_s)} rounds/s")
    else:
        words.append(f"{_rate(sum(rank.steps_per_s for rank in live.ranks) / len(live.ranks))} steps/s a rank")
    if live.samples_per_s is not None:
        words.append(f"{live.samples_per_s:,.0f} samples/s")
    if live.loss is not None:
        words.append(f"loss {live.loss:.4g}")
    if live.staleness:
        words.append(_stale(live.staleness))
    if live.skipped:
        words.append(f"{live.skipped} unreadable lines skipped")
    return words


def _stale(counts: Mapping[int, int]) -> str:
    """Recent contributions by how late they were, in words."""
    stale = late_share(counts)
    return f"{stale:.0%} stale (up to {max(counts)})" if stale else "nothing stale"


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
