"""The way of one step through the package: `python -m bench.walk` prints its files and functions in order, and counts
the package's.

Each walk trains for a while first, so that everything is made that is made once, and then follows steps of rank 0 with
`sys.setprofile`. Shown is a usual one: it was on time.
"""

from __future__ import annotations

import argparse
import ast
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import outpace

PACKAGE = Path(outpace.__file__).parent
WARM_UP, RANKS = 12, 4
TIMEOUT_S = 120.0


class Walk:
    """Calls of functions of the package, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []  #: file and function

    @property
    def files(self) -> list[str]:
        """In the order in which they are come to."""
        return list(dict.fromkeys(file for file, _ in self.calls))

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Within, calls are noted."""
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(str(PACKAGE)) and not frame.f_code.co_name.startswith("<"):
            self.calls.append((str(Path(name).relative_to(PACKAGE)), frame.f_code.co_qualname))

    def lines(self) -> list[str]:
        """One for each file, with its functions in the order of their first calls."""
        functions: dict[str, dict[str, None]] = {file: {} for file in self.files}
        for file, function in self.calls:
            functions[file].setdefault(function)
        return [f"{file}: {', '.join(names)}" for file, names in functions.items()]


def on_ranks(strategy: str) -> list[tuple[str, str]]:
    """In each rank: of the steps after the warm-up that were on time, the one in the middle by its number of files. All
    but rank 0 just train."""
    weight = torch.nn.Parameter(torch.zeros(1000))
    rank = int(os.environ["RANK"])
    walks = []
    with outpace.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), strategy, timeout_s=TIMEOUT_S) as optimizer:
        for step in range(4 * WARM_UP):
            weight.grad = torch.ones(1000)
            if rank or step < WARM_UP:
                optimizer.step()
                continue
            walk = Walk()
            with walk.followed():
                optimizer.step()
            if optimizer._last.waits:
                walks.append(walk)
    walks.sort(key=lambda walk: len(walk.files))
    return walks[len(walks) // 2].calls if walks else []


def in_simulation(strategy: str) -> list[tuple[str, str]]:
    """The same on simulated ranks, timing alone: from one step of rank 0 until its next."""
    from outpace.simulation import Scenario, simulate_timing
    from outpace.strategies import strategy as by_name

    walk, chosen = Walk(), by_name(strategy)
    step, steps = type(chosen).step, 0

    async def followed(self: Any, engine: Any, work: Any) -> Any:
        nonlocal steps
        if engine.rank == 0:
            steps += 1
            sys.setprofile(walk._note if steps == WARM_UP else None)
        return await step(self, engine, work)

    type(chosen).step = followed  # type: ignore[method-assign,assignment]
    try:
        simulate_timing(chosen, Scenario(ranks=RANKS, steps=2 * WARM_UP))
    finally:
        sys.setprofile(None)
        type(chosen).step = step  # type: ignore[method-assign]
    return walk.calls


WALKS: dict[str, Callable[[], list[tuple[str, str]]]] = {
    "one eager-majority step on one machine": lambda: outpace.spawn(on_ranks, RANKS, ("eager-majority",))[0],
    "one WAGMA step on one machine": lambda: outpace.spawn(on_ranks, RANKS, ("wagma",))[0],
    "one eager-majority step between two hosts": lambda: outpace.spawn(on_ranks, RANKS, ("eager-majority",), hosts=2)[
        0
    ],
    "one simulated eager-majority step": lambda: in_simulation("eager-majority"),
}


def counts() -> str:
    """How large the package is, and how many of its directories import another."""
    texts = {path.relative_to(PACKAGE): path.read_text() for path in PACKAGE.rglob("*.py")}
    modules = {
        f"outpace.{'.'.join(path.with_suffix('').parts)}".removesuffix(".__init__"): path.parent for path in texts
    }
    edges = set()
    for path, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module:
                module = node.module
                imported = (modules.get(f"{module}.{name.name}", modules.get(module)) for name in node.names)
                edges |= {(path.parent, other) for other in imported if other not in (None, path.parent)}
    lines = [text.count("\n") for text in texts.values()]
    size = f"{len(lines)} files, {sum(lines):,} lines, {max(lines)} in the largest"
    return f"{size}; {len(edges)} imports of one directory by another"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("only", nargs="*", help="words that a walk's name must contain")
    wanted = parser.parse_args().only
    print(f"the package: {counts()}")
    for name, walked in WALKS.items():
        if all(word in name for word in wanted):
            walk = Walk()
            walk.calls = walked()
            functions = len(set(walk.calls))
            print(f"{name}: {len(walk.files)} files, {functions} functions, {len(walk.calls)} calls")
            for line in walk.lines():
                print(f"  {line}")


if __name__ == "__main__":
    main()
