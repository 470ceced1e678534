"""`outpace strategies` and the like: what names stand for, from the code itself."""

from __future__ import annotations

import json

import pytest

from outpace.cli import main
from outpace.cli.catalogue import CATALOGUE, entry
from outpace.spec import build

EVERY_NAME = [(command, name) for command, (_, makers) in CATALOGUE.items() for name in makers]


@pytest.mark.parametrize(("command", "name"), EVERY_NAME)
def test_what_is_shown_as_a_default_can_be_typed(command: str, name: str) -> None:
    one, makers = CATALOGUE[command]
    shown = {key: option.typed for key, option in entry(command, name).options.items()}
    given = ",".join(f"{key}={value}" for key, value in shown.items() if value)  # a path has none
    if name != "trace":
        build(f"{name}:{given}", makers, one)


@pytest.mark.parametrize(("command", "name"), EVERY_NAME)
def test_every_name_and_every_option_is_explained(command: str, name: str) -> None:
    found = entry(command, name)
    assert found.about.partition("\n")[0].endswith(".")
    assert ">>>" not in found.about
    unexplained = [key for key, option in found.options.items() if not option.about and f"`{key}`" not in found.about]
    assert not unexplained


def test_all_are_listed_and_one_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["strategies"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in CATALOGUE["strategies"][1])
    assert main(["strategies", "eager"]) == 0
    assert "max_staleness=8" in capsys.readouterr().out


@pytest.mark.parametrize("command", CATALOGUE)
def test_json_has_every_name_with_its_options(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    assert main([command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert set(found) == set(CATALOGUE[command][1])
    assert all(described["about"] for described in found.values())


def test_an_unknown_name_is_answered_with_those_that_are_alike(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["strategies", "eger"]) == 2
    assert "did you mean eager" in capsys.readouterr().err
