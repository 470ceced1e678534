"""Trains with Hugging Face's Trainer or Accelerate, in one of several ways. Arguments: what to do, and a folder."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from outpace.huggingface import OutpaceAccelerator, OutpaceTrainer
from tests.trainers.programs import task


class Sentences(torch.utils.data.Dataset):
    """Of very different lengths: a mean over ranks is not the mean over tokens."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        ids = torch.randint(1, 32, (16,), generator=generator)
        labels = ids.clone()
        labels[4 + index % 12 :] = -100
        return {"input_ids": ids, "labels": labels}


def language_model() -> GPT2LMHeadModel:
    torch.manual_seed(task.rank())
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16, "vocab_size": 32}
    quiet = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(**sizes, **quiet, use_cache=False))


def arguments(folder: str, **options) -> TrainingArguments:
    said = {"use_cpu": True, "per_device_train_batch_size": 4, "num_train_epochs": 2, "learning_rate": 0.01}
    said |= {"report_to": [], "save_strategy": "no", "logging_steps": 4, "disable_tqdm": True, "seed": 3}
    return TrainingArguments(folder, **(said | options))


class Losses(TrainerCallback):
    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_log(self, args, state, control, logs=None, **_):
        if logs and "loss" in logs:
            self.losses.append(logs["loss"])


class Slow(TrainerCallback):
    def on_step_begin(self, args, state, control, **_):
        task.be_slow(state.global_step)


class Killed(TrainerCallback):
    def on_step_begin(self, args, state, control, **_):
        if state.global_step == 3:
            task.be_killed(task.rank())


KINDS = {
    "plain": ("allreduce", {"average_tokens_across_devices": False}),
    "accumulated": ("allreduce", {"average_tokens_across_devices": False, "gradient_accumulation_steps": 2}),
    "clipped": ("allreduce:normalise=samples", {"max_grad_norm": 0.05}),
    "by tokens": ("allreduce:normalise=samples", {}),
}


def trainers(folder: str) -> None:
    """DDP, and ours at full quorum."""
    for kind, (strategy, options) in KINDS.items():
        for name in ("ddp", "outpace"):
            seen = Losses()
            args = arguments(folder, optim="sgd", learning_rate=0.5, **options)
            common = {"args": args, "train_dataset": Sentences(), "callbacks": [seen]}
            if name == "ddp":
                trainer = Trainer(language_model(), **common)
            else:
                trainer = OutpaceTrainer(language_model(), strategy=strategy, **common)
            trainer.train()
            task.tell(folder, f"{kind}-{name}", losses=seen.losses, weights=task.weights(trainer.model))
            trainer.accelerator.free_memory()


def saving(folder: str) -> None:
    best = {"load_best_model_at_end": True, "metric_for_best_model": "loss", "eval_strategy": "steps", "eval_steps": 4}
    args = arguments(folder, save_strategy="steps", save_steps=4, **best)
    for name, checkpoint in (("saved", None), ("resumed", str(Path(folder, "checkpoint-8")))):
        trainer = OutpaceTrainer(
            language_model(), args, train_dataset=Sentences(), eval_dataset=Sentences(), callbacks=[Slow()]
        )
        trainer.train(resume_from_checkpoint=checkpoint)
        task.tell(folder, name, weights=task.weights(trainer.model), steps=trainer.state.global_step)
        trainer.accelerator.free_memory()
    trainer.train()  # once more, with the same optimizer
    task.tell(folder, "again", weights=task.weights(trainer.model), steps=trainer.state.global_step)


def straight(folder: str) -> None:
    """The Trainer without a stop, and from a checkpoint of the middle on."""
    for checkpoint in (None, str(Path(folder, "checkpoint-8"))):
        args = arguments(folder, save_strategy="steps", save_steps=8)
        trainer = OutpaceTrainer(language_model(), args, train_dataset=Sentences(), strategy="allreduce")
        trainer.train(resume_from_checkpoint=checkpoint)
        task.tell(folder, f"stopped-{checkpoint is not None}", weights=task.weights(trainer.model))
        trainer.accelerator.free_memory()


def resumed(folder: str) -> None:
    """A loop of Accelerate's without a stop, and from a checkpoint of the middle on."""
    middle = 7
    for is_resumed in (False, True):
        accelerator = OutpaceAccelerator("allreduce", cpu=True)
        net = task.network()
        plain = torch.optim.AdamW(net.parameters(), lr=0.02)
        rates = torch.optim.lr_scheduler.StepLR(plain, 5, 0.5)
        loader = DataLoader(task.data(), batch_size=task.BATCH // 2)
        model, optimizer, loader, rates = accelerator.prepare(net, plain, loader, rates)
        if is_resumed:
            accelerator.load_state(Path(folder, "middle"))
            loader = accelerator.skip_first_batches(loader, middle)
        for index, (inputs, labels) in enumerate(loader, middle if is_resumed else 0):
            accelerator.backward((model(inputs) - labels).square().mean())
            optimizer.step()
            rates.step()
            optimizer.zero_grad()
            if index + 1 == middle:
                accelerator.save_state(Path(folder, "middle"))
        accelerator.end_training()
        task.tell(folder, f"resumed-{is_resumed}", weights=task.weights(model), batches=index + 1)
        accelerator.free_memory()


def accelerate(folder: str) -> None:
    """An ordinary loop of Accelerate's."""
    for name in ("ddp", "outpace", "uneven"):
        if name == "ddp":
            accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        else:
            strategy = "allreduce" if name == "outpace" else "eager-majority"
            clip = {"strategy": strategy, "max_grad_norm": 0.5}
            accelerator = OutpaceAccelerator(cpu=True, gradient_accumulation_steps=2, **clip)
        net = task.network()
        plain = torch.optim.AdamW(net.parameters(), lr=0.02)
        loader = DataLoader(task.data(), batch_size=task.BATCH)
        optimizer, model, loader = accelerator.prepare(plain, net, loader)  # in any order
        losses = []
        for index, (inputs, labels) in enumerate(loader):
            if name == "uneven":
                task.be_slow(index)
            with accelerator.accumulate(model):
                loss = (model(inputs) - labels).square().mean()
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
        if name == "uneven":
            accelerator.save_state(Path(folder, "accelerate"))
            saved = task.weights(model)
            accelerator.wait_for_everyone()  # rank 0 alone writes
            accelerator.load_state(Path(folder, "accelerate"))
            assert task.weights(model) == saved
        if name != "ddp":
            accelerator.finish()
        task.tell(folder, f"accelerate-{name}", losses=losses, weights=task.weights(model))
        accelerator.free_memory()


def shared(folder: str) -> None:
    """All ranks of an Accelerate loop draw from one pool."""
    accelerator = OutpaceAccelerator("eager-solo", cpu=True)
    net, drawn = task.network(), task.Drawn(folder)
    plain = torch.optim.SGD(net.parameters(), lr=0.01)
    model, optimizer, loader = accelerator.prepare(net, plain, task.shared_loader())
    for epoch in range(2):
        for inputs, labels, numbers in loader:
            drawn.note(epoch, numbers)
            optimizer.zero_grad()
            accelerator.backward((model(inputs) - labels).square().mean())
            optimizer.step()
    accelerator.end_training()
    task.tell(folder, "shared", drawn=drawn.epochs)


def killed(folder: str) -> None:
    trainer = OutpaceTrainer(language_model(), arguments(folder), train_dataset=Sentences(), callbacks=[Killed()])
    trainer.train()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    globals()[sys.argv[1]](*sys.argv[2:])
