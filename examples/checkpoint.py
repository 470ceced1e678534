"""A training script that goes on where it was, whatever ended it: run it again with the same folder.

    torchrun --nproc-per-node 4 examples/checkpoint.py --folder /tmp/run

Try it: kill it at any moment (Ctrl-C, or `kill -9` to all its processes) and start it again. With the strategy
`allreduce` it ends with the very weights of a run that was never disturbed.
"""

import argparse
import hashlib
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

import outpace

KEPT = 2  #: complete checkpoints that stay


def complete(folder: Path) -> list[Path]:
    """Checkpoints that are there as a whole, the latest last."""
    return sorted((path for path in folder.glob("step-*") if not path.suffix), key=lambda path: int(path.name[5:]))


def save(folder: Path, state: outpace.TrainingState, step: int) -> None:
    """Writes a checkpoint beside the others, and gives it its name when all ranks have written their parts."""
    partial = folder / f"step-{step}.partial"
    dcp.save({"training": state}, checkpoint_id=partial)
    if dist.get_rank() == 0:
        partial.rename(folder / f"step-{step}")
        for old in complete(folder)[:-KEPT]:
            shutil.rmtree(old)


def main() -> None:
    """Fits a noisy function of random inputs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where checkpoints lie")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=20, help="steps between two checkpoints")
    parser.add_argument("--strategy", default="allreduce")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")  # torch.distributed.checkpoint writes with all ranks together
    rank = dist.get_rank()
    arguments.folder.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(rank)  # each rank draws data of its own
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))
    plain = torch.optim.AdamW(model.parameters(), lr=0.01)
    optimizer = outpace.DistributedOptimizer(plain, strategy=arguments.strategy, model=model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.steps)
    progress = {"step": 0}  # a rank's own; so are the scheduler and the random generators
    state = outpace.TrainingState(model, optimizer, scheduler=scheduler, progress=progress)

    found = complete(arguments.folder)
    if found:
        dcp.load({"training": state}, checkpoint_id=found[-1])
        if rank == 0:
            print(f"goes on from {found[-1].name}", flush=True)

    while progress["step"] < arguments.steps:
        inputs = torch.randn(32, 8)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), inputs.sin().sum(dim=1, keepdim=True))
        loss.backward()
        optimizer.step()
        scheduler.step()
        progress["step"] += 1
        if progress["step"] % arguments.every == 0:
            save(arguments.folder, state, progress["step"])
            if rank == 0:
                print(f"step {progress['step']}: loss {loss.item():.3f}", flush=True)

    optimizer.finish()
    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    if rank == 0:
        print(f"weights {hashlib.sha256(weights).hexdigest()[:16]}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
