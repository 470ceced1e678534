"""Code: functions of modules that no rank trains on are held out, and longer ones cost more."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from outpace.errors import InvalidRules, OutpaceError
from outpace.workloads import code, workload
from outpace.workloads.code import BEGIN, HELD_OUT, PADDING, TOKENS, TRAINED, VOCABULARY, Code, corpus, lengths_of


def costs(task: Code, world: int) -> torch.Tensor:
    steps = range(task.steps_per_epoch)
    batches = (task.batch(step, rank, world)[0] for step in steps for rank in range(world))
    return torch.tensor([task.cost(inputs, inputs) for inputs in batches])


def test_functions_are_spelled_within_the_vocabulary_and_cut_off() -> None:
    trained, held_out, sizes = corpus()
    assert (len(trained), len(held_out), len(sizes)) == (TRAINED, HELD_OUT, VOCABULARY)
    for function in trained + held_out:
        assert 1 <= len(function) <= TOKENS
        assert BEGIN < int(function.min()) <= int(function.max()) < VOCABULARY
    assert sizes[BEGIN + 1 :].min() == 1
    assert (sizes[PADDING], sizes[BEGIN]) == (0, 0)


def test_spelling_loses_nothing_but_what_is_cut_off() -> None:
    text = "def f(self):\n    return self.zyx + 1"
    vocabulary = code._vocabulary([text] * 3 + ["def self return"])
    by_token = {token: piece for piece, token in vocabulary.items()}
    assert "".join(by_token[int(token)] for token in code._spelled(text, vocabulary)) == text
    del vocabulary["zyx"]
    assert "".join(by_token[int(token)] for token in code._spelled(text, vocabulary)) == text


def test_no_module_is_both_trained_on_and_held_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "TRAINED", 20)
    monkeypatch.setattr(code, "HELD_OUT", 4)
    for number in range(60):
        (tmp_path / f"m{number}.py").write_text(f"def f():\n    return {number}\n\nclass C:\n    def g(s): {number}\n")
    trained, held_out = code._functions(tmp_path)
    modules = [{text.split()[-1] for text in part} for part in (trained, held_out)]
    assert [len(part) for part in (trained, held_out)] == [20, 4]
    assert not modules[0] & modules[1]


def test_modules_that_cannot_be_parsed_and_letters_beyond_ascii_are_left_out(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text("def broken(:")
    assert list(code._cut(module)) == []
    module.write_text("def f():\n    return 'ü'\nasync def g(): pass\n", encoding="utf-8")
    assert list(code._cut(module)) == ["async def g(): pass\n"]


def test_a_python_without_its_source_is_told(tmp_path: Path) -> None:
    with pytest.raises(OutpaceError, match=r"holds only 0 of the 2,432 functions .* choose another workload"):
        code._functions(tmp_path)


def test_each_target_is_what_follows_its_inputs() -> None:
    inputs, targets = Code().batch(0, 0, 8)
    assert (inputs[:, 0] == BEGIN).all()
    assert torch.equal(inputs == PADDING, targets == PADDING)
    here = targets[:, 1:] != PADDING
    assert torch.equal(inputs[:, 1:][here], targets[:, :-1][here])


def test_a_mini_batch_costs_one_in_the_mean_and_differs_by_nature() -> None:
    with_eight = costs(Code(), 8)
    assert with_eight.mean() == pytest.approx(1, abs=0.01)
    assert 0.4 < with_eight.std() < 0.7
    assert costs(Code(), 2).mean() == pytest.approx(1, abs=0.05)


def test_padding_changes_neither_losses_nor_costs() -> None:
    task = Code()
    model, (inputs, targets) = task.model(), task.batch(1, 0, 8)
    wider, beyond = (torch.nn.functional.pad(part, (0, 9)) for part in (inputs, targets))
    assert torch.equal(task.loss(model(wider), beyond), task.loss(model(inputs), targets))
    assert task.cost(wider, wider) == task.cost(inputs, inputs)
    assert torch.allclose(model(inputs[:1])[0], model(inputs)[0, : int(lengths_of(inputs[:1]))], atol=1e-5)


def test_parts_of_a_mini_batch_have_its_loss_in_the_mean_of_their_tokens() -> None:
    task = Code()
    model, (inputs, targets) = task.model(), task.batch(0, 0, 2)
    total = sum(
        task.loss(model(x), y) * (y != PADDING).sum()
        for x, y in zip(inputs.tensor_split(4), targets.tensor_split(4), strict=True)
    )
    assert torch.allclose(total / (targets != PADDING).sum(), task.loss(model(inputs), targets), rtol=1e-4)


def test_a_model_that_knows_nothing_needs_all_bits_of_a_token() -> None:
    task = Code()
    model = task.model()
    torch.nn.init.zeros_(model.head.weight)
    torch.nn.init.zeros_(model.head.bias)
    score = task.score(model)
    tokens = sum(len(function) for function in task._held_out)
    read_bytes = sum(int(task._token_bytes[function].sum()) for function in task._held_out)
    assert score.loss == pytest.approx(math.log(VOCABULARY), rel=1e-4)
    assert score.metric == pytest.approx(math.log2(VOCABULARY) * tokens / read_bytes, rel=1e-4)


@pytest.mark.parametrize("width", [0, 7, 2.0, True, "wide"])
def test_a_width_that_heads_cannot_share_is_refused(width: object) -> None:
    with pytest.raises(InvalidRules, match="must be a whole number, a multiple of 2 heads"):
        Code(width=width)  # type: ignore[arg-type]


def test_a_wider_model_is_asked_for_by_name() -> None:
    task = workload("code:width=64,seed=2")
    assert task.model().head.in_features == 64
