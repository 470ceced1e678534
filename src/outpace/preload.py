"""Imported once by the server that `spawn` forks ranks from, so that no rank pays for it again.

torch imports its compiler when the first optimizer is made, which takes seconds.
"""

from __future__ import annotations

import torch

import outpace

torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.0)

__all__ = ["outpace"]
