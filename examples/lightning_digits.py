"""Handwritten digits with Lightning: a data module, a classifier, the best checkpoint tested, as in Lightning's own
example `backbone_image_classifier.py`; with scikit-learn's small images, so that nothing is downloaded.

    pip install 'outpace[lightning,data]'
    python examples/lightning_digits.py --devices 4

What outpace changes is marked with (1) and (2).
"""

import argparse

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import outpace.lightning  # noqa: F401  (1): gives Lightning the strategy's name


class Digits(pl.LightningDataModule):
    """1,797 images of 8 x 8 pixels."""

    def setup(self, stage: str) -> None:
        images, labels = load_digits(return_X_y=True)
        data = TensorDataset(torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(labels))
        parts = random_split(data, [1397, 200, 200], torch.Generator().manual_seed(42))
        self.parts = dict(zip(("train", "val", "test"), parts, strict=True))

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.parts["train"], batch_size=32, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.parts["val"], batch_size=50)

    def test_dataloader(self) -> DataLoader:
        return DataLoader(self.parts["test"], batch_size=50)


class Classifier(pl.LightningModule):
    """A small convolutional network."""

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(512, 10),
        )

    def training_step(self, batch: list, index: int) -> torch.Tensor:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.net(images), labels)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: list, index: int) -> None:
        self._measure(batch, "val")

    def test_step(self, batch: list, index: int) -> None:
        self._measure(batch, "test")

    def _measure(self, batch: list, name: str) -> None:
        images, labels = batch
        scores = self.net(images)
        self.log(f"{name}_loss", nn.functional.cross_entropy(scores, labels), sync_dist=True)
        self.log(f"{name}_accuracy", (scores.argmax(1) == labels).float().mean(), sync_dist=True, prog_bar=True)

    def configure_optimizers(self) -> dict:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, self.hparams.lr, total_steps=self.trainer.estimated_stepping_batches
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def main() -> None:
    """Trains, keeps the best checkpoint, tests it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--folder", default="runs/digits")
    arguments = parser.parse_args()
    pl.seed_everything(42)
    best = pl.callbacks.ModelCheckpoint(monitor="val_accuracy", mode="max")
    trainer = pl.Trainer(
        max_epochs=arguments.epochs,
        accelerator="cpu",
        devices=arguments.devices,
        strategy="outpace",  # (2): was "ddp"
        default_root_dir=arguments.folder,
        callbacks=[best, pl.callbacks.EarlyStopping("val_loss", patience=3)],
        gradient_clip_val=1.0,
    )
    data = Digits()
    trainer.fit(Classifier(lr=0.01), data)
    trainer.test(datamodule=data, ckpt_path="best")


if __name__ == "__main__":
    main()
