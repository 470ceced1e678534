"""Gloo between two or more hosts, for ever or so many times: each line of rank 0 is one operation and its seconds.

flows.py broadcast SOURCE BYTES [TIMES]     one direction: from this rank to all others
flows.py allreduce BYTES [TIMES]            all directions
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist


def main(kind: str, *given: str) -> None:
    numbers = [int(word) for word in given]
    source = numbers.pop(0) if kind == "broadcast" else 0
    tensor = torch.ones(numbers.pop(0) // 4)
    dist.init_process_group("gloo")
    call: Callable[[], object] = (
        (lambda: dist.broadcast(tensor, source)) if kind == "broadcast" else (lambda: dist.all_reduce(tensor))
    )
    answer = torch.zeros(1)
    for count in range(numbers[0]) if numbers else itertools.count():
        began = time.perf_counter()
        call()
        dist.all_reduce(answer)  # whoever sends is done when it was received
        print(json.dumps({"count": count + 1, "seconds": time.perf_counter() - began}), flush=True)
    dist.destroy_process_group()
    print(json.dumps({name.lower(): int(os.environ[name]) for name in ("RANK", "GROUP_RANK", "LOCAL_RANK")}))


if __name__ == "__main__":
    main(*sys.argv[1:])
