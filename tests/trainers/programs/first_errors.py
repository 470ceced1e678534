"""What users of these frameworks meet first, in one process. Prints each message."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable

import lightning.pytorch as pl
import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader

import outpace
from tests.trainers.programs import task

QUIET = {"accelerator": "cpu", "devices": 1, "logger": False, "enable_checkpointing": False, "max_epochs": 1}
QUIET |= {"enable_progress_bar": False, "enable_model_summary": False}


class Module(pl.LightningModule):
    """Wraps its optimizers as it is told."""

    def __init__(self, wrap: Callable) -> None:
        super().__init__()
        self.net, self._wrap = task.network(), wrap

    def training_step(self, batch, _):
        return (self.net(batch[0]) - batch[1]).square().mean()

    def configure_optimizers(self):
        return self._wrap(self.net)


def fit(wrap: Callable) -> None:
    from outpace.lightning import OutpaceStrategy

    trainer = pl.Trainer(strategy=OutpaceStrategy("eager-majority"), **QUIET)
    trainer.fit(Module(wrap), DataLoader(task.data(), batch_size=task.BATCH))


def sgd(net: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.1)


def other_strategy() -> None:
    from outpace.fabric import OutpaceStrategy

    pl.Trainer(strategy=OutpaceStrategy(), **QUIET)


def misspelt() -> None:
    from outpace.lightning import OutpaceStrategy

    loader = DataLoader(task.data(), batch_size=task.BATCH)
    pl.Trainer(strategy=OutpaceStrategy("eager-majorty"), **QUIET).fit(Module(sgd), loader)


def wrapped_by_hand() -> None:
    fabric = Fabric(accelerator="cpu", devices=1, strategy="ddp")
    fabric.launch()
    net = task.network()
    wrapped = fabric.setup_module(net)
    outpace.DistributedOptimizer(sgd(wrapped), "eager-majority")


def sharded() -> None:
    from accelerate.utils import DistributedType

    from outpace.huggingface import OutpaceAccelerator

    accelerator = OutpaceAccelerator("eager-majority", cpu=True)
    accelerator.state.distributed_type = DistributedType.FSDP  # which Accelerate itself needs a GPU for
    accelerator.begin({})


CASES: dict[str, Callable[[], object]] = {  # in this order: what is imported makes names known
    "name not imported": lambda: pl.Trainer(strategy="outpace", **QUIET),
    "other strategy": other_strategy,
    "misspelt": misspelt,
    "two optimizers": lambda: fit(lambda net: [sgd(net[0]), sgd(net[2])]),
    "LBFGS": lambda: fit(lambda net: torch.optim.LBFGS(net.parameters())),
    "wrapped twice": lambda: fit(lambda net: outpace.DistributedOptimizer(sgd(net), "eager-majority", net)),
    "DDP as well": wrapped_by_hand,
    "sharded": sharded,
}


def main() -> None:
    warnings.simplefilter("ignore")
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    said = {}
    for name, provoke in CASES.items():
        try:
            provoke()
        except Exception as error:
            said[name] = f"{type(error).__name__}: {error}"
    print(json.dumps(said))


if __name__ == "__main__":
    main()
