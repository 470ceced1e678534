"""Hugging Face's Trainer and Accelerate with ours, against their own DDP."""

import pytest
import torch

pytest.importorskip("transformers", reason="skipped: transformers is not installed")
pytest.importorskip("accelerate", reason="skipped: accelerate is not installed")

from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from safetensors.torch import load_file

from outpace.errors import OutpaceError
from outpace.huggingface import OutpaceAccelerator
from tests.trainers.launching import assert_shared, finished, launch, same_on_all_ranks, told
from tests.trainers.programs import task
from tests.trainers.programs.huggingface_program import KINDS, language_model

PROGRAM = "huggingface_program"


def assert_alike(folder, name, are_losses_alike=True):
    for ddp, ours in zip(told(folder, f"{name}-ddp"), told(folder, f"{name}-outpace"), strict=True):
        assert ours["weights"] == pytest.approx(ddp["weights"], rel=1e-4, abs=1e-5), name
        if are_losses_alike:
            assert ours["losses"] == pytest.approx(ddp["losses"], rel=1e-5), name


def test_trainer_at_full_quorum_trains_like_ddp(tmp_path):
    finished(launch("torchrun", PROGRAM, "trainers", tmp_path))
    for kind, (strategy, _) in KINDS.items():
        assert_alike(tmp_path, kind, are_losses_alike="samples" not in strategy)  # it logs each rank's own mean


def test_accelerate_at_full_quorum_trains_like_ddp_and_loads_what_it_saved(tmp_path):
    finished(launch("torchrun", PROGRAM, "accelerate", tmp_path))
    assert_alike(tmp_path, "accelerate")
    final = same_on_all_ranks(tmp_path, "accelerate-uneven")
    plain = task.network()
    plain.load_state_dict(load_file(tmp_path / "accelerate" / "model.safetensors"))
    assert task.weights(plain) == final


def test_a_loop_of_accelerate_that_was_stopped_ends_like_one_that_was_not(tmp_path):
    finished(launch("torchrun", PROGRAM, "resumed", tmp_path))
    assert same_on_all_ranks(tmp_path, "resumed-True", "batches") == 16
    assert same_on_all_ranks(tmp_path, "resumed-True") == same_on_all_ranks(tmp_path, "resumed-False")
    state = torch.load(tmp_path / "middle" / "optimizer.bin", weights_only=True)
    torch.optim.AdamW(task.network().parameters()).load_state_dict(state)


def test_a_trainer_that_was_stopped_ends_like_one_that_was_not(tmp_path):
    finished(launch("torchrun", PROGRAM, "straight", tmp_path))
    assert same_on_all_ranks(tmp_path, "stopped-True") == same_on_all_ranks(tmp_path, "stopped-False")


def test_from_a_shared_sampler_each_sample_is_trained_once_and_a_fast_rank_takes_more(tmp_path):
    finished(launch("torchrun", PROGRAM, "shared", tmp_path))
    assert_shared(tmp_path)


def test_a_sharded_model_is_refused():
    accelerator = OutpaceAccelerator("eager-majority", cpu=True)
    try:
        accelerator.state.distributed_type = DistributedType.FSDP  # which Accelerate itself needs a GPU for
        with pytest.raises(OutpaceError, match="FSDP spreads one model over several ranks"):
            accelerator.begin({})
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.long
def test_checkpoints_of_a_rank_that_lags_load_into_plain_torch_and_resume(tmp_path):
    finished(launch("torchrun", PROGRAM, "saving", tmp_path))
    for name in ("saved", "resumed", "again"):
        same_on_all_ranks(tmp_path, name)
        assert same_on_all_ranks(tmp_path, name, "steps") == 16
    plain = language_model()
    missing, unexpected = plain.load_state_dict(
        load_file(tmp_path / "checkpoint-8" / "model.safetensors"), strict=False
    )
    assert (missing, unexpected) == (["lm_head.weight"], []), "but what is tied to another"
    state = torch.load(tmp_path / "checkpoint-8" / "optimizer.pt", weights_only=True)
    assert len(state["param_groups"]) == 2


@pytest.mark.long
def test_a_rank_that_is_killed_cannot_come_back_and_says_why(tmp_path):
    done = launch("outpace", PROGRAM, "killed", tmp_path)
    assert done.returncode == 1
    assert "CannotRejoin: this rank was started again, and Hugging Face's Accelerate keeps" in done.stderr
