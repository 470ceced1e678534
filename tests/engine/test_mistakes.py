"""Bad input gets a clear error, and loses nothing."""

import atexit
import json
import os
import subprocess

import numpy
import pytest
import torch

import outpace
from outpace.engines import agreement
from outpace.engines.arena import arena
from outpace.engines.arena.log import RECORD_BYTES, LogFile, encode
from outpace.errors import ArenaInvalid, InvalidRules, UnknownName
from outpace.job.environment import environment_of
from outpace.job.store import open_store
from outpace.protocol.events import Arrive
from outpace.protocol.rules import Rules
from outpace.replica.replica import OptimizerReplica
from outpace.vector import VectorLayout
from tests.support import mistakes


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            "shape",
            r"rank 1 has a different model from rank 0's: .* is `0.weight`, \[17, 12\] here, \[16, 12\]",
        ),
        ("dtype", r"first difference is `0.weight`, torch.bfloat16 here, torch.float32 there"),
        ("layers", r"first difference is `2.weight` \(\[1, 1\], torch.float32\), only here"),
        ("optimizer", r"optimizer is 'Adam' here, 'SGD' there"),
        ("strategy", r"quorum is 'solo' here, 'full' there"),
    ],
)
def test_another_model_on_one_rank_is_refused_naming_the_first_difference(kind, message):
    with pytest.raises(outpace.RankFailed, match=message) as caught:
        outpace.spawn(mistakes.another_model, 3, (kind,))
    assert "ModelMismatch" in str(caught.value)
    assert "Start all ranks from the same code" in str(caught.value)


def test_another_torch_or_processor_is_said_and_not_refused(caplog):
    replica = OptimizerReplica(optimizer(), None)
    vector = VectorLayout.of(replica.named_parameters())
    mine = agreement.description_of(replica, vector, Rules(2), None)
    agreement.check_agreement(mine, mine, 1)
    assert caplog.messages == []
    agreement.check_agreement(mine, mine | {agreement.BUILD: ["2.6.0", "AVX2"]}, 1)
    (message,) = caplog.messages
    assert "['2.6.0', 'AVX2'] on rank 0" in message
    assert "ATEN_CPU_CAPABILITY" in message


def test_too_little_memory_names_need_and_fix():
    with pytest.raises(outpace.RankFailed, match=r"ArenaFull: training with 2 ranks needs [\d.]+ GiB") as caught:
        outpace.spawn(mistakes.too_large, 2)
    assert "max_staleness" in str(caught.value)


def test_a_full_file_system_names_need_and_fix_and_leaves_nothing(tmp_path):
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", tmp_path], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("needs the right to mount a small tmpfs")
    try:
        with pytest.raises(outpace.RankFailed, match=r"ArenaFull: training needs [\d.]+ MiB") as caught:
            outpace.spawn(mistakes.full_directory, 2, env={"OUTPACE_ARENA_DIR": str(tmp_path)})
        assert "OUTPACE_ARENA_DIR" in str(caught.value)
        assert os.listdir(tmp_path) == []
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_a_sparse_gradient_is_refused_and_training_goes_on():
    for message, version in outpace.spawn(mistakes.sparse_gradient, 2):
        assert "weight has a sparse gradient" in message
        assert "sparse=False" in message
        assert version == 1


def test_calls_after_finish_are_refused():
    for messages in outpace.spawn(mistakes.after_finish, 2):
        assert [m.split("()")[0] for m in messages] == ["step", "synchronize", "load_state_dict"]


def test_parameters_added_after_construction_are_refused():
    (messages,) = outpace.spawn(mistakes.parameters_added, 1)
    assert "cannot be added" in messages[0]
    assert "parameters have changed since" in messages[1]


def test_a_rank_that_never_joins_is_named():
    with pytest.raises(outpace.RankFailed, match=r"TimedOut: .*waited 1 s for every rank to join.*ranks \[1\]"):
        outpace.spawn(mistakes.missing_rank, 2)


def test_a_rank_that_never_arrives_is_named():
    with pytest.raises(outpace.RankFailed, match=r"TimedOut: .*waited 1 s for the quorum of round 0.*ranks \[1\]"):
        outpace.spawn(mistakes.waits_for_nothing, 2)


def test_a_quorum_larger_than_the_world_is_refused():
    with pytest.raises(InvalidRules, match=r"quorum=3 is larger than the world of 1 ranks"):
        outpace.DistributedOptimizer(optimizer(), "eager:quorum=3")


def test_an_unknown_strategy_names_the_nearest():
    with pytest.raises(UnknownName, match=r"'eager-mayority'; did you mean eager-majority"):
        outpace.DistributedOptimizer(optimizer(), "eager-mayority")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("eager:late=never", "late='never' is unknown; choose one of carry, count, drop"),
        ("eager:quorum=0", "quorum=0 must be at least 1"),
        ("eager:quorum=1.5", "as a fraction must lie in"),
        ("eager:quorum", "is not of the form option=value"),
        ("eager:quorums=2", "has no option 'quorums'; it has quorum"),
        ("eager-solo:quorum=2", "has no option 'quorum'"),
        ("eager:grace=-1", "grace=-1 must be"),
        ("eager:max_staleness=0", "max_staleness=0 must be"),
    ],
)
def test_a_bad_option_is_named(text, message):
    with pytest.raises(InvalidRules, match=message):
        outpace.DistributedOptimizer(optimizer(), text)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"timeout_s": -1}, "timeout_s=-1 must be a number of seconds, greater than 0"),
        ({"timeout_s": "1"}, "timeout_s='1' must be a number of seconds"),
        ({"strategy": outpace.Eager}, r"strategy=Eager is a class: give an object of it, Eager\(\)"),
        ({"strategy": 3}, "strategy=3 must be a name, such as 'eager-majority'"),
        ({"model": torch.nn.Linear(2, 2)}, "none of the optimizer's parameters belongs to the model: pass the model"),
    ],
)
def test_a_wrong_argument_is_answered_with_what_to_write(wrong, message):
    with pytest.raises(outpace.OutpaceError, match=message):
        outpace.DistributedOptimizer(optimizer(), **wrong)


def test_normalising_by_samples_asks_for_them():
    with (
        outpace.DistributedOptimizer(optimizer(), "eager:normalise=samples") as opt,
        pytest.raises(InvalidRules, match=r"call step\(samples=n\)"),
    ):
        opt.step()


def test_ranks_without_a_launcher_are_told_how_to_start(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(outpace.OutpaceError, match="torchrun --nproc-per-node"):
        outpace.DistributedOptimizer(optimizer(), "eager-solo")


def test_ranks_on_several_hosts_are_told_what_is_missing(monkeypatch):
    store = open_store()
    for name, value in environment_of(0, 4, store.port, hosts=2).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(outpace.OutpaceError, match=r"4 ranks, 2 of them on .* the local engine works on one machine"):
        outpace.DistributedOptimizer(optimizer(), "eager-solo", engine="local")
    monkeypatch.delenv("MASTER_ADDR")
    with pytest.raises(outpace.OutpaceError, match="MASTER_ADDR not set"):
        outpace.DistributedOptimizer(optimizer(), "eager-solo")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not an outpace arena"),
        (b"GIF89a" + b"\0" * 100, "is not an outpace arena"),
        (arena._HEAD.pack(arena.MAGIC, 99, 2, b"j" * 16) + b"{}", "layout version 99"),
        (arena._HEAD.pack(arena.MAGIC, arena.LAYOUT_VERSION, 2, b"x" * 16) + b"{}", "belongs to another job"),
        (arena._HEAD.pack(arena.MAGIC, arena.LAYOUT_VERSION, 2, b"j" * 16) + b"\xff{", "header is damaged"),
    ],
)
def test_a_foreign_or_corrupt_arena_is_refused_and_left_untouched(content, message, tmp_path):
    path = tmp_path / "arena"
    path.write_bytes(content)
    fd = os.open(path, os.O_RDWR)
    with pytest.raises(ArenaInvalid, match=message):
        arena.read_header(fd, b"j" * 16)
    os.close(fd)
    assert path.read_bytes() == content


def test_a_damaged_record_of_the_log_is_refused(tmp_path):
    record = bytearray(encode(Arrive(1, 1, 7, 3, 0)))
    record[20] ^= 1
    fd = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    assert len(record) == RECORD_BYTES
    os.write(fd, record)
    with pytest.raises(ArenaInvalid, match="a record of the shared log is damaged"):
        LogFile(fd).read(0)
    os.close(fd)


def test_spawning_no_rank_is_refused():
    with pytest.raises(outpace.OutpaceError, match="at least one rank"):
        outpace.spawn(print, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fn": lambda: 1}, "write it with `def` at the top of its file, not as a lambda"),
        ({"fn": 3}, "a function is needed"),
        ({"fn": print, "args": 3}, "a sequence of its arguments"),
    ],
)
def test_spawn_says_what_a_function_must_be(arguments, message):
    with pytest.raises(outpace.OutpaceError, match=message):
        outpace.spawn(ranks=2, **arguments)


def test_an_unfrozen_parameter_is_refused():
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    used = torch.nn.Parameter(torch.ones(2))
    with outpace.DistributedOptimizer(torch.optim.SGD([used, frozen], lr=0.1), "eager-solo") as opt:
        used.grad = torch.ones(2)
        opt.step()
        frozen.requires_grad_(True)
        with pytest.raises(outpace.OutpaceError, match="one was unfrozen"):
            opt.step()


def test_a_step_that_was_interrupted_half_way_is_not_taken_twice():
    weight = torch.nn.Parameter(torch.ones(1))
    inner = torch.optim.SGD([weight], lr=1.0)
    opt = outpace.DistributedOptimizer(inner, "eager-solo")
    handle = inner.register_step_post_hook(lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    weight.grad = torch.ones(1)
    with pytest.raises(KeyboardInterrupt):
        opt.step()
    handle.remove()
    with pytest.raises(outpace.OutpaceError, match="interrupted while applying round 0"):
        opt.step()
    assert weight.item() == 0.0


def test_leaving_rounds_early_does_not_scale_later_steps():
    weight = torch.nn.Parameter(torch.zeros(1))
    with outpace.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), "eager-solo") as opt:
        for round_ in opt.rounds([torch.ones(1)] * 8, microbatches=4):
            for _ in round_:
                pass
            break
        weight.grad = torch.ones(1)
        opt.step()
    assert weight.item() == -1.0


def test_a_state_dict_can_be_taken_after_the_end():
    with outpace.DistributedOptimizer(optimizer(), "eager-solo") as opt:
        pass
    assert opt.state_dict()["outpace"]["pending"] == []


def test_numbers_of_numpy_are_hyper_parameters_too():
    weight = torch.nn.Parameter(torch.zeros(1))
    inner = torch.optim.SGD([weight], lr=1.0)
    inner.param_groups[0]["lr"] = numpy.float32(0.5)
    with outpace.DistributedOptimizer(inner, "eager-solo") as opt:
        assert json.loads(opt._replica.hyper)[0]["lr"] == 0.5


def test_a_forked_child_that_exits_does_not_finish_its_parents_rank():
    with outpace.DistributedOptimizer(optimizer(), "eager-solo") as opt:
        child = os.fork()
        if child == 0:
            atexit._run_exitfuncs()
            os._exit(0)
        os.waitpid(child, 0)
        opt.param_groups[0]["params"][0].grad = torch.ones(2)
        opt.step()
        assert opt.stats.ranks[0].on_time == 1
