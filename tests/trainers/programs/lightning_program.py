"""Trains with Lightning's Trainer, in one of several ways. Arguments: what to do, a folder, and what that needs."""

from __future__ import annotations

import gc
import os
import signal
import sys
import warnings
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, LearningRateMonitor, ModelCheckpoint
from torch.utils.data import DataLoader

from outpace.errors import OutpaceError
from outpace.lightning import OutpaceStrategy
from tests.trainers.programs import task

KINDS = ("plain", "buffers", "clipped", "bf16", "manual")


class Model(pl.LightningModule):
    def __init__(self, kind: str = "plain", is_uneven: bool = False) -> None:
        super().__init__()
        self.net = task.network(has_buffers=kind == "buffers")
        self.kind, self.is_uneven = kind, is_uneven
        self.automatic_optimization = kind != "manual"
        self.losses: list[float] = []
        self.versions: list[int] = []

    def loss(self, batch):
        return (self.net(batch[0]) - batch[1]).square().mean()

    def training_step(self, batch, index):
        if self.is_uneven:
            task.be_slow(index)
        loss = self.loss(batch)
        self.losses.append(float(loss))
        self.log("loss", loss)
        if not self.automatic_optimization:
            for optimizer in self.optimizers():
                optimizer.zero_grad()
            self.manual_backward(loss)
            for optimizer in self.optimizers():
                optimizer.step()
        return loss

    def validation_step(self, batch, _):
        self.log("val", self.loss(batch), sync_dist=True)

    test_step = validation_step

    def predict_step(self, batch, _):
        return self.net(batch[0])

    def configure_optimizers(self):
        if not self.automatic_optimization:
            layers = self.net[0], self.net[2]
            return [torch.optim.SGD(layer.parameters(), lr=0.02) for layer in layers]
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.02)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def loader(rows: int = task.ROWS) -> DataLoader:
    return DataLoader(task.data(rows), batch_size=task.BATCH)


def trainer(strategy, folder: str, **options) -> pl.Trainer:
    said = {"accelerator": "cpu", "devices": 2, "max_epochs": 2, "default_root_dir": folder, "logger": False}
    said |= {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    return pl.Trainer(strategy=strategy, **(said | options))


def compare(folder: str) -> None:
    """Each kind of training with DDP, and with ours at full quorum."""
    for kind in KINDS:
        options = {
            "clipped": {"gradient_clip_val": 0.1, "accumulate_grad_batches": 2},
            "bf16": {"precision": "bf16-mixed"},
        }
        for name, strategy in (
            ("ddp", "ddp"),
            ("outpace", OutpaceStrategy(strategy="allreduce", log_dir=Path(folder, kind))),
        ):
            model = Model(kind)
            made = trainer(strategy, folder, **options.get(kind, {}))
            made.fit(model, loader(), loader(32))
            clip = made.gradient_clip_val
            elsewhere = [] if name == "ddp" else [each for o in made.optimizers for each in o.stats.elsewhere]
            tested = made.test(model, loader(32), verbose=False)
            facts = {"losses": model.losses, "weights": task.weights(model), "clip": clip, "tested": tested}
            facts["elsewhere"] = {each.site: each.calls for each in elsewhere}
            task.tell(folder, f"{kind}-{name}", **facts)


def save(folder: str) -> None:
    """By name, with all that hangs on a Trainer, while the last rank lags."""
    keep = ModelCheckpoint(folder, "best", monitor="val", every_n_train_steps=3, save_on_train_epoch_end=False)
    last = ModelCheckpoint(folder, "step-{step}", every_n_train_steps=5, save_top_k=-1)
    rates = LearningRateMonitor("step")
    others = [rates, EarlyStopping("val", patience=10)]
    options = {"val_check_interval": 4, "logger": True, "log_every_n_steps": 1, "enable_checkpointing": True}
    model = Model(is_uneven=True)
    made = trainer("outpace", folder, callbacks=[keep, last, *others], **options)
    made.fit(model, loader(), loader(32))
    final = task.weights(model)
    stats = made.optimizers[0].stats if made.optimizers else None
    made.save_checkpoint(Path(folder, "end.ckpt"))
    predicted = made.predict(model, loader(16), return_predictions=True)
    version = None if stats is None else stats.version
    facts = {"weights": final, "rates": list(rates.lrs), "predicted": len(predicted), "version": version}
    task.tell(folder, "saved", **facts)


def resume(folder: str, strategy: str, checkpoint: str) -> None:
    model = Model()
    made = trainer(OutpaceStrategy(strategy=strategy), folder, max_epochs=3)
    made.fit(model, loader(), ckpt_path=checkpoint)
    task.tell(folder, "resumed", weights=task.weights(model), steps=made.global_step, losses=model.losses)


class Drawing(Model):
    """Draws from one pool for all ranks."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.drawn = task.Drawn(folder)

    def training_step(self, batch, index):
        *sample, numbers = batch
        self.drawn.note(self.current_epoch, numbers)
        return self.loss(sample)


def shared(folder: str) -> None:
    """Also with what would validate or save on some ranks alone."""
    said = []
    for options in ({"val_check_interval": 4}, {"callbacks": [ModelCheckpoint(folder, every_n_train_steps=3)]}):
        try:
            counting = trainer(OutpaceStrategy("eager-solo"), folder, **({"enable_checkpointing": True} | options))
            counting.fit(Drawing(folder), task.shared_loader(), loader(32))
        except OutpaceError as error:
            said.append(str(error))
    model = Drawing(folder)
    trainer(OutpaceStrategy("eager-solo"), folder).fit(model, task.shared_loader(), loader(32))
    task.tell(folder, "shared", drawn=model.drawn.epochs, said=said)


def straight(folder: str, *strategies: str) -> None:
    """Without a stop, and with one after an epoch: ends with the same weights."""
    for stop in (False, True):
        torch.manual_seed(1)
        model = Model()
        keep = ModelCheckpoint(folder, "epoch-{epoch}", save_top_k=-1)
        made = trainer(OutpaceStrategy(strategy="allreduce"), folder, callbacks=[keep], enable_checkpointing=True)
        if stop:
            made.fit(model, loader(), ckpt_path=str(Path(folder, "epoch-epoch=0.ckpt")))
        else:
            made.fit(model, loader())
        task.tell(folder, f"stopped-{stop}", weights=task.weights(model), steps=made.global_step)


class AtBatch(Callback):
    """Something happens to the last rank in the middle."""

    def __init__(self, what: str) -> None:
        self._what = what

    def on_train_batch_start(self, trainer, module, batch, index):
        if index == 3 and self._what == "kill":
            task.be_killed(trainer.global_rank)
        if index == 3 and trainer.global_rank == trainer.world_size - 1:
            if self._what == "raise":
                raise ZeroDivisionError("in one rank")
            os.kill(os.getppid(), getattr(signal, self._what))  # to the process that has launched this one


def disturbed(folder: str, what: str) -> None:
    model = Model()
    strategy = OutpaceStrategy(strategy="eager-majority", timeout_s=60)
    made = trainer(strategy, folder, callbacks=[AtBatch(what)], max_epochs=500 if what.startswith("SIG") else 2)
    made.fit(model, loader())
    task.tell(folder, "done", weights=task.weights(model))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    globals()[sys.argv[1]](*sys.argv[2:])
    gc.collect()  # a DDP model that is freed after its group ends the process: torch aborts, or hangs
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
