"""Source code: a small transformer that learns to write the functions of Python's standard library.

Functions differ in length by nature, and so do the ranks that each read a few. Nothing is downloaded and nothing kept
on disk: the source lies beside every Python. Another version of Python has other functions, so results are comparable
on one version alone.
"""

from __future__ import annotations

import ast
import hashlib
import math
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.optim import Optimizer

from outpace.errors import InvalidRules, OutpaceError
from outpace.randomness import seeded
from outpace.spec import is_whole
from outpace.workloads.base import Buckets, Metric, Score, Workload, check_world

BATCH, LAYERS, HEADS = 32, 2, 2
LEARNING_RATE = 0.01
TRAINED, HELD_OUT = 2048, 384  #: functions
TOKENS, VOCABULARY = 160, 384  #: of a function, which is cut off there; and all there are
PADDING, BEGIN = 0, 1

_PIECES = re.compile(r"[A-Za-z]+|\n *|.")
_CHARACTERS = ["\n", *map(chr, range(32, 127))]  #: whatever has no token of its own is spelled with these
_MOST_BYTES = 100_000  #: of a module: a few giants would crowd out the others, and take long to parse
_HELD_OUT_SHARE = 6  #: one module in so many is held out


class Corpus(NamedTuple):
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


class Code(Workload):
    """A small transformer that learns Python's standard library, whose functions are unequally long.

    Each rank's mini-batch holds functions of similar length, 160 tokens at most. `width` is the model's: a wider one
    computes longer, for races without emulated computing. Held out are functions of modules that no rank trains on.

    >>> task = Code(seed=1)
    >>> inputs, targets = task.batch(step=0, rank=3, world=8)
    >>> inputs.shape == targets.shape, len(inputs)
    (True, 4)
    """

    metric = Metric("bits/byte", higher_is_better=False)
    by_nature = "lengths"
    race_epochs = 5.0

    def __init__(self, seed: int = 0, width: int = 24) -> None:
        if not is_whole(width) or width < HEADS or width % HEADS:
            raise InvalidRules(f"width={width!r} must be a whole number, a multiple of {HEADS} heads")
        self.seed, self.width = seed, width
        self._functions, self._held_out, self._token_bytes = corpus()
        self.lengths, self.mini_batch = torch.tensor([len(function) for function in self._functions]), BATCH
        self._buckets = Buckets(self.lengths, BATCH, f"code/{seed}")
        self.steps_per_epoch = self._buckets.steps
        self._mean_length = float(self.lengths.double().mean())

    def model(self) -> nn.Module:
        with seeded(f"code/{self.seed}/model"):
            return Transformer(self.width)

    def optimizer(self, model: nn.Module) -> Optimizer:
        return torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)

    def batch(self, step: int, rank: int, world: int) -> tuple[Tensor, Tensor]:
        check_world(world, BATCH, "code", "functions")
        return self.samples(self._buckets.indices(step, rank, world))

    def samples(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return _padded([self._functions[index] for index in indices])

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        seen = targets[:, : outputs.shape[1]]
        return nn.functional.cross_entropy(outputs.flatten(0, 1), seen.flatten(), ignore_index=PADDING)

    def cost(self, inputs: Tensor, outputs: Tensor) -> float:
        return float(lengths_of(inputs).double().mean()) / self._mean_length

    @torch.no_grad()
    def score(self, model: nn.Module) -> Score:
        nats, tokens, read_bytes = 0.0, 0, 0
        by_length = sorted(self._held_out, key=len)
        for first in range(0, len(by_length), BATCH):
            inputs, targets = _padded(by_length[first : first + BATCH])
            count = int((targets != PADDING).sum())
            nats += float(self.loss(model(inputs), targets)) * count
            tokens += count
            read_bytes += int(self._token_bytes[targets].sum())
        return Score(nats / tokens, nats / read_bytes / math.log(2))


class Transformer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.places = nn.Embedding(TOKENS, width)
        self.layers = nn.Sequential(*(_Layer(width) for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, inputs: Tensor) -> Tensor:
        trimmed = inputs[:, : int(lengths_of(inputs).max())]
        hidden = self.tokens(trimmed) + self.places.weight[: trimmed.shape[1]]
        scores: Tensor = self.head(self.norm(self.layers(hidden)))
        return scores


class _Layer(nn.Module):
    """Causal attention, then a small network; both beside a shortcut. Padding comes last, where nobody looks back."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.look = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 3 * width))
        self.mix = nn.Linear(width, width)
        self.think = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        count, places, width = hidden.shape
        looked = self.look(hidden).view(count, places, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        query, key, value = looked.unbind(0)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.mix(seen.transpose(1, 2).reshape(count, places, width))
        after: Tensor = hidden + self.think(hidden)
        return after


def lengths_of(inputs: Tensor) -> Tensor:
    return (inputs != PADDING).sum(dim=1)


def _padded(functions: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Each token's predecessor, which for the first is a sign of its own; and the tokens."""
    targets = pad_sequence(functions, batch_first=True, padding_value=PADDING)
    inputs = torch.cat([torch.full((len(functions), 1), BEGIN), targets[:, :-1]], dim=1)
    return inputs.masked_fill(targets == PADDING, PADDING), targets
