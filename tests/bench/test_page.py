"""The benchmarks' page is made of figures, each with its spread."""

import json

import pytest

from bench import results_file
from bench.__main__ import main
from bench.collectives import _row as collectives_row
from bench.figures import ratio, spread
from bench.page import page, section
from bench.sections import SECTIONS, measure_of

MACHINE = {"cpu": "a processor", "cores": 2, "memory_gb": 8, "torch": "2", "python": "3", "open_mpi": None}


def record(figures):
    return {"repeat": 3, "quick": False, "date": "2026-01-01", "figures": figures}


def collectives(open_mpi=True):
    found = {"round": [0.02, 0.01, 0.03], "end to end": [0.04] * 3, "gloo": [0.3, 0.1, 0.3], "limit": [0.005] * 3}
    if open_mpi:
        found["open mpi"] = [0.05] * 3
    return {"has_open_mpi": open_mpi, "rows": [collectives_row(8, "25 MB", found)], "variants": []}


def test_ratios_are_taken_within_a_repeat():
    assert ratio([10.0, 40.0, 30.0], [1.0, 4.0, 10.0]) == spread([10.0, 10.0, 3.0])


def test_a_section_shows_medians_and_spreads():
    text = section("collectives", record(collectives()))
    assert "20 ms (10 to 30)" in text
    assert "10x (10 to 15)" in text
    assert "25 % (16.7 to 50)" in text


def test_a_peer_that_is_not_installed_is_skipped_with_a_word():
    text = section("collectives", record(collectives(open_mpi=False)))
    assert "Open MPI is not installed here" in text


def test_every_section_has_a_template_and_a_measure():
    empty = page({"machine": MACHINE, "sections": {}})
    for name in SECTIONS:
        assert f"`python -m bench --only {name}`" in empty
        assert callable(measure_of(name))


def test_render_makes_the_page_again_without_measuring(tmp_path):
    results, target = tmp_path / "results.json", tmp_path / "page.md"
    results_file.write(results, {"machine": MACHINE, "sections": {"collectives": record(collectives())}})
    assert main(["--render", "--results", str(results), "--page", str(target)]) == 0
    text = target.read_text()
    assert "2 cores (a processor)" in text
    assert "10x (10 to 15)" in text
    assert "Not measured yet: `python -m bench --only skew`" in text


def test_sections_of_another_machine_are_not_mixed(tmp_path, capsys):
    results = tmp_path / "results.json"
    results_file.write(results, {"machine": MACHINE, "sections": {"collectives": record(collectives())}})
    before = results.read_text()
    target = ["--results", str(results), "--page", str(tmp_path / "page.md")]
    assert main(["--only", "grace", *target]) == 2
    assert "nothing was measured" in capsys.readouterr().err
    assert results.read_text() == before


def test_one_section_is_measured_again_and_the_others_stay(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("bench.__main__.machine", lambda: MACHINE)
    monkeypatch.setattr("bench.efficiency.names", lambda: ["allreduce", "eager-solo"])
    results, target = tmp_path / "results.json", tmp_path / "page.md"
    results_file.write(results, {"machine": MACHINE, "sections": {"collectives": record(collectives())}})
    files = ["--results", str(results), "--page", str(target)]
    assert main(["--quick", "--only", "efficiency", *files]) == 0
    assert set(json.loads(results.read_text())["sections"]) == {"collectives", "efficiency"}
    assert "| `eager-solo` |" in target.read_text()
    assert "| `eager-solo` |" in capsys.readouterr().out


def test_ctrl_c_shows_what_was_measured_and_keeps_the_files(tmp_path, capsys, monkeypatch):
    shares = iter([1.0] * 14)

    def share(*_):
        try:
            return next(shares)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr("bench.efficiency._share", share)
    results = tmp_path / "results.json"
    files = ["--results", str(results), "--page", str(tmp_path / "page.md")]
    assert main(["--quick", "--only", "efficiency,grace", *files]) == 130
    shown = capsys.readouterr()
    assert "| `ad-psgd` |" in shown.out
    assert "interrupted" in shown.err
    assert not results.exists()


def test_a_section_that_does_not_exist_is_named(capsys):
    with pytest.raises(SystemExit):
        main(["--only", "speed"])
    assert "there is no section 'speed'; choose of collectives" in capsys.readouterr().err
