"""The random generators that a training loop draws from. Owns taking their state and putting it back."""

from __future__ import annotations

import random
from typing import Any

import numpy
import torch


def generators() -> dict[str, Any]:
    """The state of Python's, numpy's and torch's own generators, of every GPU's, too."""
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": numpy.random.get_state(),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def restore(state: dict[str, Any]) -> None:
    """The inverse of `generators`."""
    random.setstate(state["python"])
    numpy.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
