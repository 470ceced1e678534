"""What is left of a plain loop's speed-up inside a framework: DDP against `eager-majority`, one rank slow at each step.

    python -m bench.trainers                 # all of them, four ranks, about four minutes
    python -m bench.trainers lightning       # one of them

Computing is a sleep, longer on one rank at each step, in turn: equal in the end, so that only waiting makes a
difference. Measured is the loop alone, from the fifth step until the last rank has finished, and not what a framework
does before and after it. All ranks begin that step together: where they began some tenths of a second apart, the same
loop took 27 to 31 seconds, in simulated time, too, as it happened to be.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from bench.priority import come_first

RANKS, STEPS, WARM_UP = 4, 36, 4
COMPUTE_S, DELAY_S = 0.2, 0.6
STRATEGY = "eager-majority"
AS_RANK = "--rank"  #: how a run starts its own ranks
FRAMEWORKS = ("plain", "lightning", "fabric", "trainer", "accelerate")


class Batches(Dataset):
    """Reading one is computing it."""

    def __len__(self) -> int:
        return RANKS * STEPS

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.ones(8)}


class Model(torch.nn.Module):
    """Its forward pass sleeps; one rank's is longer, in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
        self.marks: list[float] = []
        self.end = 0.0

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        step, rank = len(self.marks), int(os.environ["RANK"])
        if step == WARM_UP:
            come_first()
            dist.barrier()
        self.marks.append(time.monotonic())
        is_slow = step >= WARM_UP and (step * 7 + step // RANKS) % RANKS == rank
        time.sleep(COMPUTE_S + (DELAY_S if is_slow else 0.0))
        return {"loss": self.layer(x).square().mean()}

    def ends(self) -> None:
        self.end = time.monotonic()

    def took_s(self) -> tuple[float, float]:
        return self.marks[WARM_UP], self.end


def loader() -> DataLoader:
    return DataLoader(Batches(), batch_size=1)


def plain(is_ours: bool) -> Model:
    from torch.utils.data.distributed import DistributedSampler

    import outpace

    if not dist.is_initialized():
        dist.init_process_group("gloo")
    net = Model()
    inner = torch.optim.SGD(net.parameters(), lr=0.01)
    optimizer = outpace.DistributedOptimizer(inner, STRATEGY, net) if is_ours else inner
    model = net if is_ours else torch.nn.parallel.DistributedDataParallel(net)
    for batch in DataLoader(Batches(), batch_size=1, sampler=DistributedSampler(Batches())):
        optimizer.zero_grad()
        model(batch["x"])["loss"].backward()
        optimizer.step()
    if is_ours:
        optimizer.finish()
    net.ends()
    return net


def lightning(is_ours: bool) -> Model:
    import lightning.pytorch as pl

    from outpace.lightning import OutpaceStrategy

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Model()

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return self.net(batch["x"])["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_checkpointing": False,
        "enable_model_summary": False,
    }
    strategy = OutpaceStrategy(strategy=STRATEGY) if is_ours else "ddp"
    trainer = pl.Trainer(accelerator="cpu", devices=RANKS, max_epochs=1, strategy=strategy, **quiet)
    module = Module()
    trainer.fit(module, loader())
    module.net.ends()
    return module.net


def fabric(is_ours: bool) -> Model:
    from lightning.fabric import Fabric

    from outpace.fabric import OutpaceStrategy

    strategy = OutpaceStrategy(strategy=STRATEGY) if is_ours else "ddp"
    made = Fabric(accelerator="cpu", devices=RANKS, strategy=strategy)
    made.launch()
    net = Model()
    model, optimizer = made.setup(net, torch.optim.SGD(net.parameters(), lr=0.01))
    for batch in made.setup_dataloaders(loader()):
        optimizer.zero_grad()
        made.backward(model(batch["x"])["loss"])
        optimizer.step()
    if is_ours:
        optimizer.finish()
    net.ends()
    return net


def trainer(is_ours: bool) -> Model:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from outpace.huggingface import OutpaceTrainer

    said = {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "logging_strategy": "no", "optim": "sgd"}
    arguments = TrainingArguments(
        tempfile.mkdtemp(), use_cpu=True, per_device_train_batch_size=1, num_train_epochs=1, **said
    )
    net = Model()

    class Ends(TrainerCallback):
        def on_train_end(self, *_: Any, **__: Any) -> None:
            net.ends()

    data = {"train_dataset": Batches(), "callbacks": [Ends()]}
    made = OutpaceTrainer(net, arguments, strategy=STRATEGY, **data) if is_ours else Trainer(net, arguments, **data)
    made.train()
    made.accelerator.free_memory()
    return net


def accelerate(is_ours: bool) -> Model:
    from accelerate import Accelerator

    from outpace.huggingface import OutpaceAccelerator

    accelerator = OutpaceAccelerator(cpu=True, strategy=STRATEGY) if is_ours else Accelerator(cpu=True)
    net = Model()
    made = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01), loader())
    model, optimizer, batches = made
    for batch in batches:
        optimizer.zero_grad()
        accelerator.backward(model(batch["x"])["loss"])
        optimizer.step()
    if is_ours:
        accelerator.finish()
    net.ends()
    accelerator.free_memory()
    return net


def rank(framework: str, folder: str) -> None:
    """What each rank does: first with DDP, then with ours."""
    warnings.simplefilter("ignore")
    train: Callable[[bool], Model] = globals()[framework]
    spans = [train(is_ours).took_s() for is_ours in (False, True)]
    Path(folder, f"{os.environ['RANK']}.json").write_text(json.dumps(spans))


def measured(framework: str) -> tuple[float, float]:
    """Seconds of the loop with DDP, and with ours."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(RANKS),
            "-m",
            "bench.trainers",
            AS_RANK,
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, *command, framework, folder], env=environment, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"{framework} failed:\n{done.stderr[-4000:]}")
        spans = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]
    ddp, ours = (max(s[i][1] for s in spans) - min(s[i][0] for s in spans) for i in (0, 1))
    return ddp, ours


def main(chosen: list[str]) -> None:
    reference = None
    print(f"{RANKS} ranks, {STEPS} steps, {COMPUTE_S * 1e3:.0f} ms each and {DELAY_S * 1e3:.0f} ms more on one rank")
    print("| | DDP, s | eager-majority, s | speed-up | of the plain loop's |\n| --- | --- | --- | --- | --- |")
    for framework in chosen:
        ddp, ours = measured(framework)
        gain = ddp / ours
        reference = reference or gain
        print(f"| {framework} | {ddp:.1f} | {ours:.1f} | {gain:.2f} | {gain / reference:.0%} |", flush=True)


if __name__ == "__main__":
    if AS_RANK in sys.argv:
        rank(*sys.argv[2:])
    else:
        main(sys.argv[1:] or list(FRAMEWORKS))
