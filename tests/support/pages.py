"""The pages that users read, and what they tell them to type."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
_PROGRAMS = r"(?:outpace|python3?|torchrun|srun|make|pip|tensorboard)"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_NAMES = {"P": "2", "N": "2", "NAME": "eager", "RUN": "runs/today", "RUN_DIR": "RUN_DIR"}


def blocks(page: Path, language: str) -> list[str]:
    return [code for kind, code in _BLOCK.findall(page.read_text(encoding="utf-8")) if kind == language]


def commands(page: Path) -> list[str]:
    """What somebody could type: lines of indented blocks, and code in sentences.

    `outpace run` alone, without what to run, is just a name; so is `make`. Placeholders stand for what one has.
    """
    text = page.read_text(encoding="utf-8")
    in_prose = re.sub(r"^    .*$", "", _BLOCK.sub("", text), flags=re.MULTILINE)
    lines = re.findall(r"^    (.*)$", _BLOCK.sub("", text), re.MULTILINE)
    lines += [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", in_prose)]
    typed = (re.split(r"\s+#", line)[0].strip() for line in lines if re.match(rf"{_PROGRAMS} +\S", line))
    whole = (
        line for line in typed if not re.fullmatch(r"outpace (?:run|race|simulate|advise|watch|trace|report)", line)
    )
    filled = (re.sub(r"\b(?:NAME|RUN|[NP])\b", lambda word: _NAMES[word[0]], line) for line in whole)
    return list(dict.fromkeys(filled))


def outputs(page: Path) -> list[str]:
    """Indented blocks that follow one with a command: what that command prints."""
    parts = re.findall(r"(?:^    .*\n|^\n(?=    ))+", _BLOCK.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return [part for part in parts if not re.match(rf"\s*{_PROGRAMS} ", part)]
