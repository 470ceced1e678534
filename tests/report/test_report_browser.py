"""The page in a real browser: every chart is drawn, nothing is fetched, nothing overflows a phone.

A probe is added to a copy of the page. It does what a person would, and writes what it saw into the document.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

from outpace.race.report.page import render
from tests.support import made_races
from tests.support.devtools import Browser

FLAGS = [
    "--no-sandbox",
    "--headless",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-default-apps",
    "--no-first-run",
    "--enable-logging=stderr",
    "--v=0",
    "--virtual-time-budget=5000",
    "--dump-dom",
]
OFFLINE = "--host-resolver-rules=MAP * ~NOTFOUND"  # the browser itself would call home
CONTROL = "http://127.0.0.1:9/asked-for-on-purpose"

SEE = """
const shown = (chart) => chart.querySelectorAll(".main-svg").length > 0;
const charts = [...document.querySelectorAll("[data-figure]")];
const seen = { charts: charts.length, empty: charts.filter((c) => !shown(c)).map((c) => c.dataset.figure) };
seen.window = innerWidth;
seen.page = document.documentElement.scrollWidth;
seen.wide = charts.filter((c) => c.querySelector(".main-svg").getBoundingClientRect().right > innerWidth).length;
seen.ink = getComputedStyle(document.querySelector(".main-svg .xtick text")).fill;
const lines = () => document.querySelectorAll("[data-figure=metric] .scatterlayer .trace").length;
seen.lines = lines();
document.querySelector("[data-toggle=ddp]").click();
seen.linesWithoutDdp = lines();
const other = document.querySelector("[data-timeline][aria-pressed=false]");
other.click();
seen.pressed = [...document.querySelectorAll("[data-timeline][aria-pressed=true]")].length;
seen.chosen = document.getElementById("chosen").dataset.figure === other.dataset.timeline;
"""


@pytest.fixture(scope="module")
def chromium() -> str:
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("chromium is not installed here: the report was not tried in a browser")
    return found


@pytest.fixture(scope="module")
def page() -> str:
    race, traces = made_races.usual()
    return render(race, lambda attempt: traces.get(attempt.directory))


def browse(chromium: str, file: Path, *flags: str) -> tuple[str, str, set[str]]:
    """The document after its scripts ran, what the console has, and what the page asked the network for."""
    profile, net_log = f"--user-data-dir={file.parent / 'profile'}", file.parent / "net.json"
    command = [chromium, *FLAGS, OFFLINE, profile, f"--log-net-log={net_log}", *flags, file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout, "\n".join(console), requested(net_log)


def probed(page: str, tell: str) -> str:
    return page.replace("</body>", f"<script>addEventListener('load', () => {{ {SEE} {tell} }});</script></body>")


def seen(document: str) -> dict:
    (found,) = re.findall(r"<title>seen (.*?)</title>", document)
    return json.loads(unescape(found))


def requested(net_log: Path) -> set[str]:
    """Every address that a page asked for; what the browser wanted for itself has no origin."""
    about = [event.get("params", {}) for event in json.loads(net_log.read_text())["events"]]
    return {it["url"] for it in about if "url" in it and it.get("initiator", "not an origin") != "not an origin"}


def test_every_chart_is_drawn_and_nothing_is_fetched(chromium: str, page: str, tmp_path: Path):
    file = tmp_path / "page.html"
    file.write_text(probed(page, "document.title = 'seen ' + JSON.stringify(seen)"))
    document, console, fetched = browse(chromium, file, "--window-size=1280,1000")
    assert console == ""
    assert fetched == set()
    found = seen(document)
    assert found["charts"] == 16
    assert found["empty"] == []
    assert (found["lines"], found["linesWithoutDdp"]) == (7, 6)
    assert (found["pressed"], found["chosen"]) == (1, True)


def test_a_phone_shows_it_without_scrolling_sideways_and_dark_if_it_is_dark(chromium: str, page: str, tmp_path: Path):
    """Chromium's own windows are 500 pixels wide or more; a frame may be as narrow as a phone."""
    (tmp_path / "inner.html").write_text(probed(page, "parent.postMessage(JSON.stringify(seen), '*')"))
    file = tmp_path / "phone.html"
    listen = "addEventListener('message', (event) => { document.title = 'seen ' + event.data; })"
    frame = '<iframe src="inner.html" style="width: 390px; height: 844px; border: 0"></iframe>'
    file.write_text(f"<title>-</title><script>{listen}</script><img src={CONTROL}>{frame}")
    dark = "--blink-settings=preferredColorScheme=0"
    document, console, fetched = browse(chromium, file, "--window-size=600,900", dark)
    assert console == ""
    assert fetched == {CONTROL}, "the frame asked for nothing, and who asks is found out"
    found = seen(document)
    assert found["window"] == 390
    assert found["page"] <= 390
    assert found["wide"] == 0
    assert found["ink"] == "rgb(157, 167, 179)", "charts have the colours of the dark style sheet"


def test_charts_follow_when_it_gets_dark_and_when_the_window_narrows(chromium: str, page: str, tmp_path: Path):
    file = tmp_path / "page.html"
    file.write_text(page)
    ink = "getComputedStyle(document.querySelector('.main-svg .xtick text')).fill"
    width = "Math.round(document.querySelector('.main-svg').getBoundingClientRect().width)"
    flags = [*FLAGS[:8], OFFLINE, f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1280,1000"]
    with Browser(chromium, flags, file) as browser:
        assert (browser.value(ink), browser.value(width) > 390) == ("rgb(95, 104, 115)", True)
        dark = [{"name": "prefers-color-scheme", "value": "dark"}]
        browser.ask("Emulation.setEmulatedMedia", features=dark)
        browser.until(f"{ink} === 'rgb(157, 167, 179)'")
        browser.ask("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
        browser.until(f"{width} < 390")
