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
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn

import outpace


def train(config: dict) -> None:
    """What each worker does, also where Ray starts all of them again: from the last checkpoint."""
    rank = ray.train.get_context().get_world_rank()
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    plain = torch.optim.AdamW(model.parameters(), lr=0.01)
    optimizer = outpace.DistributedOptimizer(plain, strategy=config["strategy"], model=model)
    begin = resume(model, optimizer)
    torch.manual_seed(1000 * begin + rank)
    loss = torch.zeros(())
    for step in range(begin, config["steps"]):
        inputs = torch.randn(32, 8)
        loss = (model(inputs) - inputs.square().sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % config["report_every"] == 0:
            optimizer.synchronize()  # all workers, one version: what is saved is what all have
            report(model, optimizer, {"step": step + 1, "loss": loss.item(), "began": begin})
    optimizer.finish()
    report(model, optimizer, {"step": config["steps"], "loss": loss.item(), "began": begin})


def resume(model: nn.Module, optimizer: outpace.DistributedOptimizer) -> int:
    """On all workers. Returns how many steps were made before."""
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        saved = torch.load(os.path.join(folder, "state.pt"), weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return int(saved["step"])


def report(model: nn.Module, optimizer: outpace.DistributedOptimizer, facts: dict) -> None:
    """All workers report, as Ray wants it; the first one brings the checkpoint."""
    if ray.train.get_context().get_world_rank() > 0:
        ray.train.report(facts)
        return
    with tempfile.TemporaryDirectory() as folder:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": facts["step"]}
        torch.save(state, os.path.join(folder, "state.pt"))
        ray.train.report(facts, checkpoint=Checkpoint.from_directory(folder))


def main() -> None:
    """Trains with so many workers on this machine. The same folder and name again: goes on where it was."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--strategy", default="eager-majority")
    parser.add_argument("--name", default="outpace", help="of the run: one that is there goes on where it was")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where Ray keeps checkpoints")
    arguments = parser.parse_args()
    config = {"steps": arguments.steps, "strategy": arguments.strategy, "report_every": 20}
    trainer = TorchTrainer(
        train,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=arguments.workers, resources_per_worker={"CPU": 0.5}),
        run_config=RunConfig(
            storage_path=os.path.abspath(arguments.folder),
            name=arguments.name,
            failure_config=FailureConfig(max_failures=1),  # a worker that dies: all begin again from the checkpoint
        ),
    )
    result = trainer.fit()
    with result.checkpoint.as_directory() as folder:
        weights = torch.load(os.path.join(folder, "state.pt"), weights_only=True)["model"]
    total = sum(value.double().sum().item() for value in weights.values())
    steps, began = result.metrics["step"], result.metrics["began"]
    print(f"loss {result.metrics['loss']:.3f} after {steps} steps, {began} of them before; weights {total:.6f}")


if __name__ == "__main__":
    main()
