"""Every process knows which rank it is, or says what it would have to be told; it never trains alone by mistake."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import outpace
from outpace.job.environment import Group, Place, place_of
from tests.support import started_by_hand
from tests.support.processes import finding_tests

LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR")
LAUNCHERS += ("MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT")


@st.composite
def jobs(draw):
    """What is true of one process, what its launcher says of it, and whether torch.distributed was initialised."""
    local_worlds = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    node = draw(st.integers(0, len(local_worlds) - 1))
    if draw(st.booleans()):
        local_worlds = [local_worlds[node]] * len(local_worlds)
    local = draw(st.integers(0, local_worlds[node] - 1))
    rank, world = sum(local_worlds[:node]) + local, sum(local_worlds)
    facts = {
        "RANK": rank,
        "WORLD_SIZE": world,
        "LOCAL_RANK": local,
        "LOCAL_WORLD_SIZE": local_worlds[node],
        "NODE_RANK": node,
        "OMPI_COMM_WORLD_SIZE": world,
    }
    said = {name: str(facts[name]) for name in draw(st.sets(st.sampled_from(sorted(facts))))}
    is_even = len(set(local_worlds)) == 1
    return (rank, world, local_worlds[node]), said, draw(st.booleans()), is_even


def found(said: dict[str, str], group: Group | None) -> tuple[Place | None, str]:
    try:
        return place_of(said, group), ""
    except outpace.OutpaceError as error:
        return None, str(error)


@given(jobs())
def test_no_process_ever_takes_itself_for_another_rank_whatever_part_of_the_truth_it_is_told(job):
    truth, said, is_initialised, is_even = job
    rank, world, local_world = truth
    if "RANK" not in said and not is_even:
        said.pop("LOCAL_WORLD_SIZE", None)  # a launcher that does not say RANK starts as many ranks everywhere
    place, error = found(said, Group(rank, world) if is_initialised else None)
    if place is None:
        assert not is_initialised
        assert any(f"{name} is not set" in error or f"(or {name}) is not set" in error for name in LAUNCHERS)
        return
    if not is_initialised and place.world == 1 < world:  # nothing at all spoke of others
        assert not {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"} & set(said)
        assert said.get("RANK", "0") == said.get("LOCAL_RANK", "0") == "0"
        return
    assert (place.rank, place.world) == (rank, world)
    assert place.local_world in (local_world, 1 if world == 1 else None)


@given(
    st.integers(1, 4).flatmap(lambda world: st.tuples(st.integers(0, world - 1), st.just(world))),
    st.dictionaries(st.sampled_from(["RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"]), st.sampled_from(list("0124x"))),
)
@example((1, 4), {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"})  # mp.spawn in a job of one rank
def test_an_initialised_group_is_the_truth_and_nothing_else_is_believed_where_it_differs(group, said):
    agrees = said.get("RANK", str(group[0])) == str(group[0]) and said.get("WORLD_SIZE", str(group[1])) == str(group[1])
    local_world = said.get("LOCAL_WORLD_SIZE", "1")
    if agrees and (local_world == "x" or not 1 <= int(local_world) <= group[1]):
        with pytest.raises(outpace.OutpaceError, match="LOCAL_WORLD_SIZE"):
            place_of(said, Group(*group))
        return
    place = place_of(said, Group(*group))
    assert (place.rank, place.world) == group
    if not agrees:
        assert place.local_world == (1 if group[1] == 1 else None)


@pytest.mark.parametrize(
    ("said", "missing"),
    [
        ({"WORLD_SIZE": "4"}, "RANK"),
        ({"WORLD_SIZE": "4", "LOCAL_RANK": "1"}, r"RANK \(or NODE_RANK\)"),
        ({"WORLD_SIZE": "4", "LOCAL_RANK": "1", "NODE_RANK": "1"}, r"RANK \(or LOCAL_WORLD_SIZE\)"),
        ({"RANK": "1"}, "WORLD_SIZE"),
        ({"LOCAL_RANK": "1"}, "WORLD_SIZE"),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, "WORLD_SIZE"),
        ({"SLURM_STEP_NUM_TASKS": "4"}, "WORLD_SIZE"),
    ],
)
def test_what_is_missing_is_named_with_a_way_out(said, missing):
    with pytest.raises(outpace.OutpaceError, match=rf"^{missing} is not set.*init_process_group\(\) first"):
        place_of(said, None)


def test_the_popen_launchers_of_frameworks_say_enough_on_the_first_machine():
    """They set these three, and each machine has as many ranks as the next."""
    said = {"NODE_RANK": "0", "LOCAL_RANK": "2", "WORLD_SIZE": "4"}
    assert place_of(said, None) == Place(2, 4, None, place_of({}, None).host)
    assert place_of({**said, "NODE_RANK": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}, None).rank == 2


def test_a_disagreement_is_said_once(caplog):
    for _ in range(2):
        place_of({"RANK": "0", "WORLD_SIZE": "3"}, Group(5, 6))
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("torch.distributed was initialised as rank 5 of 6, and the environment says RANK=0, WORLD")


# -- real processes ----------------------------------------------------------------------------------------------------


def clean_environment(**more: str) -> dict[str, str]:
    return {**{name: value for name, value in finding_tests().items() if name not in LAUNCHERS}, **more}


def run(scenario: str, directory: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, started_by_hand.__file__, scenario, str(directory), *arguments]
    return subprocess.run(command, env=clean_environment(**env), capture_output=True, text=True, timeout=240)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def reports(directory: Path) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))]


@pytest.mark.parametrize("scheme", ["tcp", pytest.param("file", marks=pytest.mark.long)])
def test_ranks_of_mp_spawn_and_init_process_group_train_one_model(tmp_path, scheme):
    init_method = f"tcp://127.0.0.1:{free_port()}" if scheme == "tcp" else f"file://{tmp_path}/meeting"
    done = run("spawned", tmp_path, init_method)
    assert done.returncode == 0, done.stderr
    told = reports(tmp_path)
    assert [each["rank"] for each in told] == [0, 1, 2]
    assert {each["engine"] for each in told} == {"ArenaLog"}
    assert len({each["final"] for each in told}) == 1
    assert all(each["contributors"] == [0, 1, 2] for each in told)
    for each in told:
        assert "made, which trains alone because nothing indicated other ranks" in each["made before init"]
        for how in ("ddp as model", "parameters of ddp", "wrapped after construction"):
            assert "waits for the slowest rank" in each[how], how
            assert "model.module" in each[how]
        assert each["ddp that was let go"] is None


def test_ranks_of_mp_spawn_on_several_machines_find_out_who_shares_one(tmp_path):
    """And rank 0, who holds the store, stays until a machine whose agent slept has got the end of the log from it."""
    done = run("on_two_machines", tmp_path, f"tcp://127.0.0.1:{free_port()}")
    assert done.returncode == 0, done.stderr
    told = reports(tmp_path)
    assert {each["engine"] for each in told} == {"ClusterLog"}
    assert [each["hosts"] for each in told] == [[0, 1, 0]] * 3
    assert len({each["final"] for each in told}) == 1


def test_processes_that_a_framework_started_by_popen_train_one_model(tmp_path):
    said = {"NODE_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, started_by_hand.__file__, "alone", str(tmp_path)]
    ranks = [subprocess.Popen(command, env=clean_environment(**said, LOCAL_RANK=str(rank))) for rank in range(2)]
    assert [rank.wait(240) for rank in ranks] == [0, 0]
    first, second = reports(tmp_path)
    assert (first["rank"], second["rank"]) == (0, 1)
    assert first["engine"] == second["engine"] == "ArenaLog"
    assert first["final"] == second["final"]
