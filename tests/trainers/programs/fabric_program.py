"""Trains with Lightning Fabric, in one of several ways. Arguments: what to do, a folder, and what that needs."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader

from outpace.errors import OutpaceError
from outpace.fabric import OutpaceStrategy
from tests.trainers.programs import task


def train(fabric: Fabric, is_uneven: bool = False, checkpoint: str = "", kill: bool = False) -> dict[str, object]:
    """An ordinary loop of Fabric's, with accumulation and clipping."""
    net = task.network()
    model, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters(), lr=0.02))
    loader = fabric.setup_dataloaders(DataLoader(task.data(), batch_size=task.BATCH))
    state = {"model": model, "optimizer": optimizer, "step": 0, "batches": 0}
    if checkpoint and Path(checkpoint).exists():
        fabric.load(checkpoint, state)
    losses = []
    for index, (inputs, labels) in enumerate(loader):
        if index < state["batches"]:  # as before the checkpoint
            continue
        if is_uneven:
            task.be_slow(index)
        if kill and index == 3:
            task.be_killed(fabric.global_rank)
        is_accumulating = index % 2 == 0
        with fabric.no_backward_sync(model, enabled=is_accumulating):
            loss = (model(inputs) - labels).square().mean()
            fabric.backward(loss)
        losses.append(loss.item())
        if not is_accumulating:
            optimizer.step()
            optimizer.zero_grad()
            state["step"] += 1
        state["batches"] = index + 1
        if index == 5 and checkpoint:
            fabric.save(checkpoint, state)
    return {"losses": losses, "model": model, "steps": state["step"], "optimizer": optimizer}


def made(strategy) -> Fabric:
    fabric = Fabric(accelerator="cpu", devices=2, strategy=strategy)
    fabric.launch()
    return fabric


def tell(folder: str, name: str, found: dict[str, object]) -> None:
    counted = found["optimizer"].stats.steps if name != "ddp" else 0
    facts = {"losses": found["losses"], "steps": found["steps"], "counted": counted}
    task.tell(folder, name, weights=task.weights(found["model"]), **facts)


def compare(folder: str) -> None:
    """DDP, and ours at full quorum; then ours, also by name and while the last rank lags, saving and loading."""
    for name, strategy in (("ddp", "ddp"), ("outpace", OutpaceStrategy(strategy="allreduce"))):
        found = train(made(strategy))
        if name == "outpace":
            found["optimizer"].finish()
        tell(folder, name, found)
    for kind in ("full", "lagging"):
        for name in ("saved", "resumed"):
            strategy = "outpace" if kind == "lagging" else OutpaceStrategy("allreduce")
            found = train(made(strategy), is_uneven=kind == "lagging", checkpoint=str(Path(folder, f"{kind}.ckpt")))
            found["optimizer"].finish()
            tell(folder, f"{kind}-{name}", found)


def shared(folder: str) -> None:
    """All ranks draw from one pool."""
    fabric = made(OutpaceStrategy("eager-solo"))
    net, drawn = task.network(), task.Drawn(folder)
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.01))
    try:
        fabric.setup_dataloaders(task.shared_loader())
    except OutpaceError as error:
        said = str(error)
    loader = fabric.setup_dataloaders(task.shared_loader(), use_distributed_sampler=False)
    for epoch in range(2):
        for inputs, labels, numbers in loader:
            drawn.note(epoch, numbers)
            optimizer.zero_grad()
            fabric.backward((model(inputs) - labels).square().mean())
            optimizer.step()
    optimizer.finish()
    task.tell(folder, "shared", drawn=drawn.epochs, said=said)


def killed(folder: str) -> None:
    train(made("outpace"), kill=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
