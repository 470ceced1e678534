"""Ray Train with its own workers: nothing of Ray's is changed, and the model is not given to `prepare_model`.

    pip install 'outpace[ray]'
    python examples/ray_train.py --workers 4

`prepare_model` would put the model into DDP, which waits for the slowest rank. Ray tells each worker its rank; outpace
finds it there.
"""

import argparse
import os
import tempfile

import ray.train
import torch
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn

import outpace


def train(config: dict) -> None:
    """What each worker does."""
    torch.manual_seed(ray.train.get_context().get_world_rank())
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    plain = torch.optim.AdamW(model.parameters(), lr=0.01)
    optimizer = outpace.DistributedOptimizer(plain, strategy=config["strategy"], model=model)
    for step in range(config["steps"]):
        inputs = torch.randn(32, 8)
        loss = (model(inputs) - inputs.square().sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % config["report_every"] == 0:
            optimizer.synchronize()  # all workers, one version: what is saved is what all have
            report(model, step + 1, loss.item())
    optimizer.finish()
    report(model, config["steps"], loss.item(), end=True)


def report(model: nn.Module, step: int, loss: float, end: bool = False) -> None:
    """All workers report, as Ray wants it; the first one brings the checkpoint."""
    digest = sum(p.double().sum().item() for p in model.parameters())
    facts = {"step": step, "loss": loss, "weights": digest, "end": end}
    if ray.train.get_context().get_world_rank() > 0:
        ray.train.report(facts)
        return
    with tempfile.TemporaryDirectory() as folder:
        torch.save(model.state_dict(), os.path.join(folder, "model.pt"))
        ray.train.report(facts, checkpoint=Checkpoint.from_directory(folder))


def main() -> None:
    """Trains with so many workers on this machine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--strategy", default="eager-majority")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where Ray keeps checkpoints")
    arguments = parser.parse_args()
    config = {"steps": arguments.steps, "strategy": arguments.strategy, "report_every": 20}
    trainer = TorchTrainer(
        train,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=arguments.workers, resources_per_worker={"CPU": 0.5}),
        run_config=RunConfig(storage_path=os.path.abspath(arguments.folder), name="outpace"),
    )
    result = trainer.fit()
    with result.checkpoint.as_directory() as folder:
        weights = torch.load(os.path.join(folder, "model.pt"), weights_only=True)
    total = sum(value.double().sum().item() for value in weights.values())
    print(f"loss {result.metrics['loss']:.3f} after {result.metrics['step']} steps; weights {total:.6f}")


if __name__ == "__main__":
    main()
