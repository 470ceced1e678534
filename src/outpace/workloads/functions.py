"""Functions of Python's own standard library, as numbers. Owns cutting, splitting and spelling them.

Nothing is downloaded and nothing kept on disk: the source lies beside every Python. Another version of Python has other
functions, so results are comparable on one version alone.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from outpace.errors import OutpaceError

TRAINED, HELD_OUT = 2048, 384  #: functions
TOKENS, VOCABULARY = 160, 384  #: of a function, which is cut off there; and all there are
PADDING, BEGIN = 0, 1

_PIECES = re.compile(r"[A-Za-z]+|\n *|.")
_CHARACTERS = ["\n", *map(chr, range(32, 127))]  #: whatever has no token of its own is spelled with these
_MOST_BYTES = 100_000  #: of a module: a few giants would crowd out the others, and take long to parse
_HELD_OUT_SHARE = 6  #: one module in so many is held out


class Corpus(NamedTuple):
    """Functions to train on, and functions of modules that no rank trains on."""

    trained: list[Tensor]
    held_out: list[Tensor]
    token_bytes: Tensor  #: how many bytes each token stands for


@cache
def corpus() -> Corpus:
    """Read once in each process, in less than a second, and never written to."""
    trained, held_out = _functions(Path(sysconfig.get_paths()["stdlib"]))
    vocabulary = _vocabulary(trained)
    sizes = torch.zeros(VOCABULARY, dtype=torch.long)
    for piece, token in vocabulary.items():
        sizes[token] = len(piece)
    return Corpus([_spelled(f, vocabulary) for f in trained], [_spelled(f, vocabulary) for f in held_out], sizes)


def _functions(library: Path) -> tuple[list[str], list[str]]:
    """As many as are wanted, module by module in an order that mixes all subjects."""
    trained: list[str] = []
    held_out: list[str] = []
    for path in sorted(library.glob("*.py"), key=lambda path: _digest(path.name)):
        part, wanted = (trained, TRAINED) if _digest(path.name)[-1] % _HELD_OUT_SHARE else (held_out, HELD_OUT)
        if len(part) < wanted and path.stat().st_size <= _MOST_BYTES:
            part += list(_cut(path))[: wanted - len(part)]
    if len(trained) < TRAINED or len(held_out) < HELD_OUT:
        raise OutpaceError(
            f"the workload code trains on the source of Python's standard library, and {library} holds only "
            f"{len(trained) + len(held_out):,} of the {TRAINED + HELD_OUT:,} functions it needs: nothing was trained. "
            "Install Python with its source, or choose another workload"
        )
    return trained, held_out


def _cut(path: Path) -> Iterator[str]:
    """The functions and methods of a module that are pure ASCII, as they are written."""
    source = path.read_text(encoding="utf-8", errors="replace")
    lines = source.splitlines(keepends=True)
    try:
        within = list(ast.parse(source).body)
    except SyntaxError:  # a module that was written to be wrong, or is not finished
        return
    for node in within:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            text = "".join(lines[node.lineno - 1 : node.end_lineno])
            if text.isascii() and "\t" not in text:
                yield text
        elif isinstance(node, ast.ClassDef):
            within += node.body


def _vocabulary(functions: list[str]) -> dict[str, int]:
    """All characters, and the most frequent words of the functions trained on."""
    counts = Counter(piece for function in functions for piece in _pieces(function) if len(piece) > 1)
    by_count = sorted(counts, key=lambda piece: (-counts[piece], piece))
    pieces = [*_CHARACTERS, *by_count][: VOCABULARY - BEGIN - 1]
    return {piece: token for token, piece in enumerate(pieces, BEGIN + 1)}


def _spelled(function: str, vocabulary: dict[str, int]) -> Tensor:
    tokens: list[int] = []
    for piece in _pieces(function):
        tokens += [vocabulary[piece]] if piece in vocabulary else [vocabulary.get(letter, BEGIN) for letter in piece]
    return torch.tensor(tokens[:TOKENS])


def _pieces(function: str) -> list[str]:
    """Words, line ends with the indentation that follows, and single characters."""
    return _PIECES.findall(function[: 8 * TOKENS])


def _digest(name: str) -> bytes:
    return hashlib.blake2b(name.encode(), digest_size=8).digest()
