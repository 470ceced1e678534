"""Lightning's Trainer with `strategy="outpace"`, launched in every way, against its own DDP."""

import subprocess
import sys

import pytest
import torch

pytest.importorskip("lightning", reason="skipped: lightning is not installed")

from outpace.frameworks import sort_options
from outpace.lightning import OutpaceStrategy
from tests.trainers.launching import assert_shared, finished, launch, same_on_all_ranks, told
from tests.trainers.programs import task
from tests.trainers.programs.lightning_program import KINDS

PROGRAM = "lightning_program"


def test_full_quorum_trains_like_ddp(tmp_path):
    finished(launch("torchrun", PROGRAM, "compare", tmp_path))
    for kind in KINDS:
        for ddp, ours in zip(told(tmp_path, f"{kind}-ddp"), told(tmp_path, f"{kind}-outpace"), strict=True):
            assert ours["losses"] == pytest.approx(ddp["losses"], rel=1e-5), kind
            assert ours["weights"] == pytest.approx(ddp["weights"], rel=1e-5, abs=1e-6), kind
            assert ours["clip"] == ddp["clip"], "the Trainer's own setting is put back"
            assert max(ours["elsewhere"].values()) < 16 / 2, "a collective of Lightning's in every step"
            if kind != "buffers":  # DDP keeps rank 0's statistics, ours are the mean of all ranks'
                assert ours["tested"][0]["val"] == pytest.approx(ddp["tested"][0]["val"], rel=1e-5)


def test_checkpoints_of_a_rank_that_lags_load_into_plain_torch_and_resume(tmp_path):
    finished(launch("python", PROGRAM, "save", tmp_path))  # Lightning launches the second rank itself
    final = same_on_all_ranks(tmp_path, "saved")
    assert told(tmp_path, "saved")[0]["rates"] == ["lr-AdamW"]
    end = torch.load(tmp_path / "end.ckpt", weights_only=True)
    plain = task.network()
    plain.load_state_dict({name.removeprefix("net."): value for name, value in end["state_dict"].items()})
    assert task.weights(plain) == final
    torch.optim.AdamW(plain.parameters()).load_state_dict(end["optimizer_states"][0])
    assert {path.stem for path in tmp_path.glob("*.ckpt")} >= {"best", "step-step=5", "step-step=10"}
    finished(launch("torchrun", PROGRAM, "resume", tmp_path, "eager-majority", tmp_path / "step-step=10.ckpt"))
    same_on_all_ranks(tmp_path, "resumed")
    assert same_on_all_ranks(tmp_path, "resumed", "steps") == 24


def test_from_a_shared_sampler_each_sample_is_trained_once_and_a_fast_rank_takes_more(tmp_path):
    finished(launch("torchrun", PROGRAM, "shared", tmp_path))
    assert_shared(tmp_path)
    for each in told(tmp_path, "shared"):
        assert len(each["said"]) == 2
        assert all("different numbers of steps" in said for said in each["said"])


@pytest.mark.long
def test_a_run_that_was_stopped_ends_like_one_that_was_not(tmp_path):
    finished(launch("outpace", PROGRAM, "straight", tmp_path))
    assert same_on_all_ranks(tmp_path, "stopped-True") == same_on_all_ranks(tmp_path, "stopped-False")


@pytest.mark.long
def test_a_rank_that_is_killed_cannot_come_back_and_says_why(tmp_path):
    done = launch("outpace", PROGRAM, "disturbed", tmp_path, "kill")
    assert done.returncode == 1
    assert "CannotRejoin: this rank was started again, and Lightning keeps a process group" in done.stderr


@pytest.mark.long
def test_an_exception_in_one_rank_is_seen_and_the_other_goes_on(tmp_path):
    done = launch("python", PROGRAM, "disturbed", tmp_path, "raise")
    assert "ZeroDivisionError: in one rank" in done.stderr
    assert "TimedOut" not in done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("signal", "code", "said"),
    [("SIGINT", 1, "Detected KeyboardInterrupt"), ("SIGTERM", 0, "[rank: 1] Received SIGTERM")],
)
def test_a_signal_to_the_launching_rank_ends_all(signal, code, said, tmp_path):
    """SIGTERM as Lightning has it: a `SystemExit` without a code."""
    done = launch("python", PROGRAM, "disturbed", tmp_path, signal)
    assert done.returncode == code
    assert said in done.stdout + done.stderr
    assert not list(tmp_path.glob("done-*"))


def test_options_are_sorted_and_those_of_ddp_are_refused():
    assert sort_options({"strategy": "eager-solo", "start_method": "fork"}) == (
        {"strategy": "eager-solo"},
        {"start_method": "fork"},
    )
    assert OutpaceStrategy("eager-solo")._ours == {"strategy": "eager-solo"}
    with pytest.raises(TypeError, match="no option 'find_unused_parameters': no model is put into DDP"):
        OutpaceStrategy(find_unused_parameters=True)
    with pytest.raises(TypeError, match=r"no option 'quorum'; beside Lightning's own it has .*strategy"):
        OutpaceStrategy(quorum=3)


MISSING = """
import sys
sys.modules["lightning"] = None
sys.modules["transformers"] = None
import outpace
for name in ("lightning", "fabric", "huggingface"):
    try:
        __import__(f"outpace.{name}")
    except ModuleNotFoundError as error:
        print(error)
"""


def test_a_missing_extra_is_named():
    done = subprocess.run([sys.executable, "-c", MISSING], capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "lightning is not installed: pip install 'outpace[lightning]'",
        "lightning is not installed: pip install 'outpace[lightning]'",
        "transformers is not installed: pip install 'outpace[huggingface]'",
    ]


def test_none_of_them_is_imported_unless_it_is_used():
    listing = "import outpace, sys; print({'lightning', 'transformers', 'accelerate', 'ray'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True)
    assert done.stdout.strip() == "set()"
