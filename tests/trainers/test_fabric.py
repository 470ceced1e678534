"""Fabric with `OutpaceStrategy`, against its own DDP."""

import pytest
import torch

pytest.importorskip("lightning", reason="skipped: lightning is not installed")

from tests.trainers.launching import assert_shared, finished, launch, same_on_all_ranks, told
from tests.trainers.programs import task

PROGRAM = "fabric_program"


def test_full_quorum_trains_like_ddp_and_checkpoints_load_everywhere(tmp_path):
    finished(launch("python", PROGRAM, "compare", tmp_path))  # Fabric launches the second rank itself
    for ddp, ours in zip(told(tmp_path, "ddp"), told(tmp_path, "outpace"), strict=True):
        assert ours["losses"] == pytest.approx(ddp["losses"], rel=1e-5)
        assert ours["weights"] == pytest.approx(ddp["weights"], rel=1e-5, abs=1e-6)
    assert [ours["counted"] for ours in told(tmp_path, "outpace")] == [4, 4]
    assert same_on_all_ranks(tmp_path, "full-resumed") == same_on_all_ranks(tmp_path, "full-saved")
    same_on_all_ranks(tmp_path, "lagging-saved")
    same_on_all_ranks(tmp_path, "lagging-resumed")
    assert same_on_all_ranks(tmp_path, "lagging-resumed", "steps") == 4
    saved = torch.load(tmp_path / "lagging.ckpt", weights_only=True)
    plain = task.network()
    plain.load_state_dict(saved["model"])
    torch.optim.AdamW(plain.parameters()).load_state_dict(saved["optimizer"])


def test_from_a_shared_sampler_each_sample_is_trained_once_and_a_fast_rank_takes_more(tmp_path):
    finished(launch("python", PROGRAM, "shared", tmp_path))
    assert_shared(tmp_path)
    assert all("use_distributed_sampler=False" in each["said"] for each in told(tmp_path, "shared"))


@pytest.mark.long
def test_a_rank_that_is_killed_cannot_come_back_and_says_why(tmp_path):
    done = launch("outpace", PROGRAM, "killed", tmp_path)
    assert done.returncode == 1
    assert "CannotRejoin: this rank was started again, and Fabric keeps a process group" in done.stderr
