"""The picture of the promises: step times of four ranks over 30 s while one of them is stopped for 5 s.

`python -m bench.stopped_rank` measures outpace and DDP on Gloo on this machine and writes stopped-rank.json and .png in
docs/pictures; `--draw` only draws what was measured before. What a system that detects failures would show is drawn
from its published timeouts, not measured, and the picture says so.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import outpace
from bench.stopped_rank_picture import draw

RANKS, VICTIM, COMPUTE_S = 4, 3, 0.020
SECONDS, STOP_AT_S, STOP_S = 30.0, 10.0, 5.0
STRATEGY = "eager-majority"
PICTURES = Path(__file__).parents[1] / "docs" / "pictures"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", action="store_true", help="draws what was measured before")
    data, picture = PICTURES / "stopped-rank.json", PICTURES / "stopped-rank.png"
    if not parser.parse_args().draw:
        data.write_text(json.dumps(measure()) + "\n")
    found = json.loads(data.read_text())
    for name in ("outpace", "ddp"):
        print(f"{name}: {summary(found, name)}")
    draw(found, picture)


def measure() -> dict[str, Any]:
    """Both systems, one after the other."""
    found: dict[str, Any] = {"ranks": RANKS, "victim": VICTIM, "compute_s": COMPUTE_S, "strategy": STRATEGY}
    found["load_before"] = os.getloadavg()[0]
    for name, fn in (("outpace", train_ours), ("ddp", train_ddp)):
        with tempfile.TemporaryDirectory() as directory:
            stopper = Stopper(Path(directory))
            stopper.start()
            steps = outpace.spawn(fn, RANKS, (directory,))
            stopper.join()
        if stopper.window is None:
            raise SystemExit(f"{name}: the rank was not stopped")
        zero = stopper.began_s
        found[name] = {
            "stopped": [round(at - zero, 4) for at in stopper.window],
            "steps": [[[round(a - zero, 4), round(b - zero, 4)] for a, b in of_rank if b > zero] for of_rank in steps],
        }
    return found


def summary(found: dict[str, Any], name: str) -> str:
    """How the ranks that were not stopped fared."""
    began, ended = found[name]["stopped"]
    others = [steps for rank, steps in enumerate(found[name]["steps"]) if rank != found["victim"]]
    before = [b - a for steps in others for a, b in steps if b < began]
    during = [b - a for steps in others for a, b in steps if a < ended and b > began]
    rates = len(before) / began / len(others), sum(began < b < ended for s in others for _, b in s)
    kept = rates[1] / (ended - began) / len(others) / rates[0]
    return (
        f"{rates[0]:.1f} steps/s before, {kept:.0%} of that while one rank was stopped for {ended - began:.1f} s; "
        f"longest step {1e3 * max(before):.0f} ms before, {1e3 * max(during):.0f} ms during"
    )


class Stopper(threading.Thread):
    """Stops the victim some time after all ranks have begun, and wakes it."""

    def __init__(self, directory: Path) -> None:
        super().__init__(daemon=True)
        self.began_s = 0.0
        self.window: tuple[float, float] | None = None
        self._directory = directory

    def run(self) -> None:
        files = [self._directory / str(rank) for rank in range(RANKS)]
        while not all(file.exists() and file.read_text() for file in files):
            time.sleep(0.01)
        self.began_s = time.monotonic()
        pid = int(files[VICTIM].read_text())
        time.sleep(STOP_AT_S)
        os.kill(pid, signal.SIGSTOP)
        while _state(pid) != "T":
            time.sleep(0.0005)
        at_s = time.monotonic()
        time.sleep(STOP_S)
        if _state(pid) == "T":
            self.window = (at_s, time.monotonic())
        os.kill(pid, signal.SIGCONT)
        time.sleep(max(0.0, self.began_s + SECONDS - time.monotonic()))
        (self._directory / "stop").touch()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


# -- in each rank ------------------------------------------------------------------------------------------------------


def train_ours(directory: str) -> list[tuple[float, float]]:
    model = _model()
    opt = outpace.DistributedOptimizer(_sgd(model), STRATEGY, model=model)
    steps = _train(model, opt, directory)
    opt.finish()
    return steps


def train_ddp(directory: str) -> list[tuple[float, float]]:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(_model())
    return _train(model, _sgd(model), directory)


def _model() -> torch.nn.Module:
    """Two hundred thousand parameters."""
    return torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 128))


def _sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def _train(model: torch.nn.Module, opt: Any, directory: str) -> list[tuple[float, float]]:
    """Until there is a file called `stop`. Whoever is in a collective then loses its peers, which is an end, too."""
    steps: list[tuple[float, float]] = []
    x = torch.randn(16, 256)
    stop = Path(directory, "stop")
    while not stop.exists():
        began = time.monotonic()
        time.sleep(COMPUTE_S)
        opt.zero_grad()
        try:
            model(x).pow(2).mean().backward()
        except RuntimeError:
            if stop.exists():
                break
            raise
        opt.step()
        steps.append((began, time.monotonic()))
        if len(steps) == 20:
            Path(directory, os.environ["RANK"]).write_text(str(os.getpid()))
    return steps


if __name__ == "__main__":
    main()
