"""A small GPT-2 from scratch with Hugging Face's Trainer, on the text of a folder, one token a byte: trained, evaluated
and saved as transformers' example `run_clm.py` does it, but each paragraph is an example of its own length.

    pip install 'outpace[huggingface]'
    torchrun --nproc-per-node 4 examples/huggingface_text.py --text docs

What outpace changes is marked with (1) and (2).
"""

import argparse
import math
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

from outpace.huggingface import OutpaceTrainer  # (1)


class Paragraphs(Dataset):
    """Each is one example, of its own length: ranks get batches that take different times."""

    def __init__(self, files: list[Path], longest: int) -> None:
        paragraphs = [part.strip() for file in files for part in file.read_text().split("\n\n")]
        self.examples = [list(part.encode()[:longest]) for part in paragraphs if len(part) > 20]

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> list[int]:
        return self.examples[index]


def collate(examples: list[list[int]]) -> dict[str, torch.Tensor]:
    """Pads to the longest of the batch; what is padded is not learned."""
    width = max(map(len, examples))
    ids = torch.tensor([example + [0] * (width - len(example)) for example in examples])
    real = torch.tensor([[1] * len(example) + [0] * (width - len(example)) for example in examples])
    return {"input_ids": ids, "attention_mask": real, "labels": ids.masked_fill(real == 0, -100)}


def main() -> None:
    """Trains, evaluates, saves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, default=Path("docs"), help="a folder of Markdown files")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--folder", default="runs/text")
    arguments = parser.parse_args()
    files = sorted(arguments.text.glob("*.md"))
    torch.manual_seed(1)
    size = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, **size, **ends, use_cache=False))
    args = TrainingArguments(
        arguments.folder,
        max_steps=arguments.steps,
        per_device_train_batch_size=8,
        learning_rate=2e-3,
        lr_scheduler_type="cosine",
        warmup_steps=min(20, arguments.steps // 5),
        logging_steps=50,
        eval_strategy="steps",
        eval_steps=max(1, arguments.steps // 2),
        save_steps=max(1, arguments.steps // 2),
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = OutpaceTrainer(  # (2): was Trainer
        model=model,
        args=args,
        train_dataset=Paragraphs(files[1:], 256),
        eval_dataset=Paragraphs(files[:1], 256),
        data_collator=collate,
        strategy="eager-majority:normalise=samples",  # weighs ranks by their tokens, as Trainer does by default
    )
    trainer.train()
    metrics = trainer.evaluate()
    trainer.save_model()
    if trainer.is_world_process_zero():
        print(f"perplexity {math.exp(metrics['eval_loss']):.1f} a byte", flush=True)


if __name__ == "__main__":
    main()
