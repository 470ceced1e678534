"""Source code: a small transformer that learns to write the functions of Python's standard library.

Functions differ in length by nature, and so do the ranks that each read a few. Owns the model and its order of data;
`functions` owns the text.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.optim import Optimizer

from outpace.errors import InvalidRules
from outpace.workloads.base import Metric, Score, Workload
from outpace.workloads.draws import Buckets, check_world, seeded
from outpace.workloads.functions import BEGIN, PADDING, TOKENS, VOCABULARY, corpus

BATCH, LAYERS, HEADS = 32, 2, 2
LEARNING_RATE = 0.01


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
    race_epochs = 5.0

    def __init__(self, seed: int = 0, width: int = 24) -> None:
        if not isinstance(width, int) or isinstance(width, bool) or width < HEADS or width % HEADS:
            raise InvalidRules(f"width={width!r} must be a whole number, a multiple of {HEADS} heads")
        self.seed, self.width = seed, width
        self._functions, self._held_out, self._token_bytes = corpus()
        lengths = torch.tensor([len(function) for function in self._functions])
        self._buckets = Buckets(lengths, BATCH, f"code/{seed}")
        self._mean_length = float(lengths.double().mean())

    @property
    def steps_per_epoch(self) -> int:
        """64, in a world of any size."""
        return self._buckets.steps

    def model(self) -> nn.Module:
        """Two layers; 37,152 parameters unless it is wider."""
        with seeded(f"code/{self.seed}/model"):
            return Transformer(self.width)

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Adam."""
        return torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)

    def batch(self, step: int, rank: int, world: int) -> tuple[Tensor, Tensor]:
        """A bucket of functions, padded to the longest: what comes before each token, and the token."""
        check_world(world, BATCH, "code", "functions")
        return _padded([self._functions[index] for index in self._buckets.indices(step, rank, world)])

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross entropy, the mean over all tokens that are not padding."""
        seen = targets[:, : outputs.shape[1]]
        return nn.functional.cross_entropy(outputs.flatten(0, 1), seen.flatten(), ignore_index=PADDING)

    def cost(self, inputs: Tensor, outputs: Tensor) -> float:
        """Tokens of a function, in the mean of these, where 1 is the mean of all."""
        return float(lengths_of(inputs).double().mean()) / self._mean_length

    @torch.no_grad()
    def score(self, model: nn.Module) -> Score:
        """The mean loss of a token, and how many bits a byte of source takes, on functions that no rank trains on."""
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
    """Predicts each token from those before it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.places = nn.Embedding(TOKENS, width)
        self.layers = nn.Sequential(*(_Layer(width) for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, inputs: Tensor) -> Tensor:
        """A score for each token of the vocabulary, at each place up to the longest function's end."""
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
    """How many tokens each function has, without padding."""
    return (inputs != PADDING).sum(dim=1)


def _padded(functions: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Each token's predecessor, which for the first is a sign of its own; and the tokens."""
    targets = pad_sequence(functions, batch_first=True, padding_value=PADDING)
    inputs = torch.cat([torch.full((len(functions), 1), BEGIN), targets[:, :-1]], dim=1)
    return inputs.masked_fill(targets == PADDING, PADDING), targets
