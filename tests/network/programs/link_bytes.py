"""Bytes that this host's link sends and receives for a step, with one strategy after the other. Reported as JSON.

    link_bytes.py PARAMETERS STEPS STRATEGY...

Gradients are normal and independent: ranks have hardly any large entry in common, which is the worst for ok-topk.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

import outpace

LINK, SENT, RECEIVED = "link:", 8, 0  #: in /proc/net/dev, whose columns are counted behind the name
WARM_UP = 3  #: steps that are not counted


def counted() -> tuple[int, int]:
    """(sent, received) by this host's interface so far, with all headers."""
    (numbers,) = [line.split()[1:] for line in Path("/proc/net/dev").read_text().splitlines() if LINK in line.split()]
    return int(numbers[SENT]), int(numbers[RECEIVED])


def measured(strategy: str, parameters: int, steps: int) -> dict[str, float]:
    """Bytes a step."""
    weight = torch.nn.Parameter(torch.zeros(parameters))
    inner = torch.optim.SGD([weight], lr=0.01)
    draws = torch.Generator().manual_seed(int(os.environ["RANK"]))
    before = (0, 0)
    with outpace.DistributedOptimizer(inner, strategy, timeout_s=60.0) as optimizer:
        for step in range(WARM_UP + steps):
            if step == WARM_UP:
                before = counted()
            weight.grad = torch.randn(parameters, generator=draws)
            optimizer.step()
        after = counted()
    return {"sent_bytes": (after[0] - before[0]) / steps, "received_bytes": (after[1] - before[1]) / steps}


def main(parameters: str, steps: str, *strategies: str) -> None:
    print(json.dumps({name: measured(name, int(parameters), int(steps)) for name in strategies}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
