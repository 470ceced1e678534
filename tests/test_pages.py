"""What pages tell people to write: it compiles, parses and does what it says."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import outpace
from tests.support.pages import PAGES, ROOT, blocks

LONGEST = 30  #: words of a sentence
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def sentences(page: Path) -> Iterator[str]:
    """Of prose, lists and tables; code and the targets of links are one word."""
    text = re.sub(
        r"```.*?```|<!--.*?-->|^#[^\n]*|^    [^\n]*",
        "",
        page.read_text(encoding="utf-8"),
        flags=re.DOTALL | re.MULTILINE,
    )
    text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "CODE", text))
    text = re.sub(r"^ *(?:[*-]|\d+\.) ", "\n", text, flags=re.MULTILINE)
    pieces = (piece for part in re.split(r"\n\s*\n", text) for piece in re.split(r"[|]", part))
    return (sentence for piece in pieces for sentence in re.split(r"(?<=[.!?])\s+", " ".join(piece.split())))


@every_page
def test_no_sentence_is_longer_than_thirty_words(page: Path) -> None:
    assert [each for each in sentences(page) if len(each.split()) > LONGEST] == []


@every_page
def test_every_piece_of_python_compiles(page: Path) -> None:
    for code in blocks(page, "python"):
        compile(code, page.name, "exec", dont_inherit=True)


@every_page
def test_every_test_that_a_page_names_is_there(page: Path) -> None:
    named = set(re.findall(r"`((?:tests/[\w/]*)?test_\w+\.py)`", page.read_text(encoding="utf-8")))
    files = [str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")]
    assert [name for name in named if not any(file.endswith(f"/{name}") or file == name for file in files)] == []


def test_the_description_on_an_index_has_no_link_or_picture_that_works_only_here() -> None:
    for_index = runpy.run_path(str(ROOT / "setup.py"))["for_index"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    described = for_index(readme)
    links = re.findall(r"!?\[[^\]]*\]\([^)]*\)", readme)
    kept = re.findall(r"!?\[[^\]]*\]\([^)]*\)", described)
    assert kept == [link for link in links if "](https://" in link] != []
    assert "several machines (`docs/cluster.md`)" in " ".join(described.split())
    assert "idea_picture" not in described  # a caption goes with its picture


def test_every_variable_of_the_environment_is_explained() -> None:
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    used = {name for text in sources for name in re.findall(r"OUTPACE_[A-Z_]+", text)}
    page = (ROOT / "docs" / "environment.md").read_text(encoding="utf-8")
    assert used == set(re.findall(r"OUTPACE_[A-Z_]+", page))


def test_the_strategy_of_the_contributing_page_waits_for_all_but_one() -> None:
    made: dict[str, Any] = {"__name__": "contributed"}
    (code,) = blocks(ROOT / "CONTRIBUTING.md", "python")
    exec(compile(code, "CONTRIBUTING.md", "exec", dont_inherit=True), made)

    def train() -> tuple[float, int]:
        weight = torch.nn.Parameter(torch.zeros(1))
        inner = torch.optim.SGD([weight], lr=1.0)
        optimizer = outpace.DistributedOptimizer(inner, strategy=made["AllButOne"]())
        for _ in range(10):
            optimizer.zero_grad()
            weight.sum().backward()
            optimizer.step()
        optimizer.finish()
        return weight.item(), optimizer.stats.round

    run = outpace.simulate(train, ranks=4, compute_ms=100, imbalance="slow:k=1,factor=3", network="zero")
    assert {weight for weight, _ in run.results} == {-10.0}  # every contribution once, on all ranks
    slow, *others = run.waited_s
    assert slow == 0
    assert max(others) < 1e-9 + run.seconds - 1.0  # they wait in `finish()` alone, after their ten steps
