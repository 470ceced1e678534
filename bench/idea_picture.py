"""`python -m bench.idea_picture`: the README's picture, who waited for whom, drawn from a real race of four ranks.

Owns every line of the picture. What it shows is recorded, not drawn by hand: torch's DDP above, eager-majority below.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from html import escape
from pathlib import Path

from outpace.observe.reader import read_trace
from outpace.race.report.timeline import Window, window

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "idea.svg"
RACE = [
    *("race", "--workload", "hyperplane", "--ranks", "4", "--rounds", "60", "--compute-ms", "60"),
    *("--imbalance", "random:k=1,delay_ms=180", "--seed", "5"),
]
SYSTEMS = {
    "ddp": "torch DDP: everybody waits for the slowest rank",
    "eager-majority": "outpace: the others go on",
}
SECONDS = 1.6  #: shown of each
WIDTH, LEFT, ROW, BAR, HEAD, GAP = 960, 70, 30, 20, 34, 22
COMPUTE, WAIT, APPLY, ARROW, INK = "#0072B2", "#E9C46A", "#009E73", "#D55E00", "#768390"  # readable on light and dark


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", type=Path, help="of a race that has run, instead of a new one")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        directory = given.run_dir or Path(made, "race")
        if given.run_dir is None:
            command = [sys.executable, "-m", "outpace", *RACE, "--strategies", ",".join(SYSTEMS)]
            subprocess.run([*command, "--run-dir", str(directory)], check=True)
        pieces = [window(read_trace(_recording(directory, system)), SECONDS) for system in SYSTEMS]
    PICTURE.write_text(drawn(pieces), encoding="utf-8")
    print(f"wrote {PICTURE}")
    return 0


def _recording(directory: Path, system: str) -> Path:
    (found,) = directory.glob(f"[0-9]*-{system}")
    return found


def drawn(pieces: list[Window]) -> str:
    panel = HEAD + ROW * len(pieces[0].ranks) + GAP
    height = panel * len(pieces) + 24
    body = "".join(
        f'<g transform="translate(0,{panel * place})">{"".join(_panel(piece, title))}</g>'
        for place, (piece, title) in enumerate(zip(pieces, SYSTEMS.values(), strict=True))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
        f' font-family="sans-serif" font-size="14">'
        f"<defs><marker id='head' markerWidth='7' markerHeight='7' refX='6' refY='3.5' orient='auto'>"
        f"<path d='M0,0 L7,3.5 L0,7 z' fill='{ARROW}'/></marker></defs>{body}"
        f'<g transform="translate(0,{height - 14})">{"".join(_legend())}</g></svg>\n'
    )


def _panel(piece: Window, title: str) -> Iterator[str]:
    yield f'<text x="{LEFT}" y="20" font-weight="bold" fill="{INK}">{escape(title)}</text>'
    for rank in piece.ranks:
        yield f'<text x="8" y="{_y(rank) + BAR - 5}" fill="{INK}">rank {rank}</text>'
    for kind, colour in (("computing", COMPUTE), ("waiting", WAIT), ("applying", APPLY)):
        for span in piece.spans:
            if span.kind == kind:
                width = max(1.0, _x(span.end_s) - _x(span.begin_s) - 0.8)
                place = f'x="{_x(span.begin_s):.1f}" y="{_y(span.rank)}" width="{width:.1f}" height="{BAR}"'
                yield f'<rect {place} fill="{colour}"/>'
    for arrow in piece.arrows:
        ends = f'x1="{_x(arrow.from_s):.1f}" y1="{_y(arrow.from_rank) + BAR / 2}"'
        ends += f' x2="{_x(arrow.to_s):.1f}" y2="{_y(arrow.to_rank) + BAR / 2}"'
        yield f'<line {ends} stroke="{ARROW}" stroke-width="1.6" marker-end="url(#head)"/>'


def _legend() -> Iterator[str]:
    words = ((COMPUTE, "computing"), (WAIT, "waiting for others"), (ARROW, "late work, used in the round it reaches"))
    at = LEFT
    for colour, text in words:
        yield f'<rect x="{at}" y="-10" width="14" height="12" fill="{colour}"/>'
        yield f'<text x="{at + 20}" y="1" fill="{INK}">{text}</text>'
        at += 60 + 8 * len(text)


def _x(second: float) -> float:
    return LEFT + (WIDTH - LEFT - 10) * second / SECONDS


def _y(rank: int) -> int:
    return HEAD + ROW * rank


if __name__ == "__main__":
    sys.exit(main())
