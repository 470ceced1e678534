"""The page holds everything it shows, obeys nothing that a name says, and is written whole."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from outpace.errors import OutpaceError, TraceInvalid
from outpace.race.directory import save
from outpace.race.report.page import render, write
from outpace.race.result import Entry, Settings
from outpace.workloads.base import Metric
from tests.support import made_races
from tests.support.made_races import Run, failed, plain

HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(2)">\'&{{ 7 * 7 }}'


class Elements(HTMLParser):
    """Which elements a page has, with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))


@pytest.fixture(scope="module")
def page() -> str:
    race, traces = made_races.usual()
    return render(race, lambda attempt: traces.get(attempt.directory))


def figures(text: str) -> dict:
    (found,) = re.findall(r'<script type="application/json" id="figures">(.*?)</script>', text, re.DOTALL)
    return json.loads(found)


def no_trace(attempt):
    return None


def test_the_page_has_the_verdict_the_command_and_the_scenario(page):
    assert "<h1>eager:<wbr>quorum=<wbr>adaptive,<wbr>late=<wbr>carry won:" in page
    assert f'data-command="{made_races.COMMAND}"' in page
    for word in ("emulated by sleeping: 100 ms", "random:k=1,delay_ms=200", "AMD EPYC", "4 March 2026", "0.1.0"):
        assert word in page


def test_failed_systems_are_rows_with_their_error(page):
    assert "failed: rank 3 stopped: RuntimeError: out of memory" in page


def test_every_chart_on_the_page_has_its_figure(page):
    drawn = {attributes["data-figure"] for _, attributes in Elements(page).found if "data-figure" in attributes}
    chosen = {attributes["data-timeline"] for _, attributes in Elements(page).found if "data-timeline" in attributes}
    assert drawn | chosen == set(figures(page))


def test_nothing_on_the_page_is_fetched(page):
    loading = {"src", "href", "srcset", "data", "poster", "action", "background"}
    assert not [(tag, attributes) for tag, attributes in Elements(page).found if loading & set(attributes)]
    style = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    assert "default-src 'none'" in page


def test_plotly_is_there_once(page):
    assert page.count("* plotly.js (basic - minified) v") == 1
    assert len(page.encode()) < 1_500_000


def test_what_names_say_is_shown_and_not_obeyed():
    traces = Run(8).trace("x")
    entries = [replace(plain(name, 10 + at), title=HOSTILE) for at, name in enumerate(("ddp", HOSTILE))]
    entries.append(failed("sgp", HOSTILE, HOSTILE)[0])
    race, _ = made_races.usual(
        entries=tuple(entries),
        command=HOSTILE,
        machine=HOSTILE,
        outpace=HOSTILE,
        began=HOSTILE,
        metric=Metric(HOSTILE, higher_is_better=True),
        settings=Settings(HOSTILE, imbalance=HOSTILE, epochs=1),
    )
    text = render(race, lambda attempt: traces)
    found = Elements(text).found
    assert [tag for tag, _ in found if tag == "script"] == ["script"] * 3
    assert not [tag for tag, attributes in found if tag == "img" or any(name.startswith("on") for name in attributes)]
    assert "49" not in re.findall(r"<h1>.*?</h1>", text)[0]
    assert f"timeline {HOSTILE}" in figures(text)
    shown = figures(text)["target"]["layout"]["yaxis"]["ticktext"]
    shown += [trace["name"] for trace in figures(text)["target"]["data"]]
    assert not [name for name in shown if "<script" in name], "plotly reads tags in texts"


def test_a_system_without_a_trace_has_a_word_instead_of_a_timeline():
    race, _ = made_races.usual()
    text = render(race, no_trace)
    assert "torch DDP, eager-majority" in text
    assert "left no recording that can be read" in text
    assert not [name for name in figures(text) if name.startswith("timeline")]


@pytest.mark.parametrize(
    "entries",
    [(), (Entry("ddp", "torch DDP"),), (failed("ddp", "torch DDP")[0],), (plain("ddp", 10),), (plain("wagma", 0),)],
    ids=["nothing", "not run", "failed", "alone", "at once"],
)
def test_a_race_with_little_in_it_is_a_page_too(entries):
    race, _ = made_races.usual(entries=entries, interrupted=True, began="", machine="", outpace="")
    assert "The race was interrupted" in render(race, no_trace)


def test_a_race_in_which_nothing_was_measured_is_a_page_too():
    race, _ = made_races.usual()
    blind = [
        replace(e, attempts=tuple(replace(a, curve=(), losses=(), ranks=()) for a in e.attempts)) for e in race.entries
    ]
    assert "No model was measured" in render(replace(race, entries=tuple(blind)), no_trace)


def test_real_computing_is_not_called_emulated(page):
    race, _ = made_races.usual(settings=Settings("digits", compute_ms=0, rounds=5))
    text = render(race, no_trace)
    assert "real, on this machine" in text
    assert "emulated" not in text[: text.index('id="figures"')]


def test_the_page_of_a_script_claims_no_held_out_data_and_no_emulation():
    metric = Metric("training loss", higher_is_better=False)
    race, _ = made_races.usual(settings=Settings(script="train.py", arguments=("--lr", "1")), metric=metric)
    text = render(race, no_trace)
    assert "train.py --lr 1" in text
    assert "Held-out" not in text
    assert "emulated" not in text[: text.index('id="figures"')]
    assert "loss" not in figures(text)


def test_write_leaves_one_file_in_the_run_directory(tmp_path: Path):
    race, _ = made_races.usual()
    save(race, tmp_path)
    assert write(tmp_path) == tmp_path / "report.html"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["race.json", "report.html"]
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == render(race, no_trace)


def test_what_is_no_run_directory_is_said(tmp_path: Path):
    with pytest.raises(TraceInvalid, match="not the run directory of a race"):
        write(tmp_path)


def test_a_report_that_cannot_be_written_is_said(tmp_path: Path):
    race, _ = made_races.usual()
    save(race, tmp_path)
    (tmp_path / "report.html").mkdir()
    with pytest.raises(OutpaceError, match=r"the report cannot be written to .*report\.html: Is a directory"):
        write(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["race.json", "report.html"]
