"""Every command on every page is run, in a directory that has what pages speak of.

Short ones run as they are written, and so do scripts. Races and benchmarks are made smaller, and most are marked
`long`. What a test cannot run is named with the reason; a command that no rule knows fails.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from outpace.cli.parser import RACED
from tests.network import namespaces
from tests.support.pages import PAGES, ROOT, blocks, commands, outputs
from tests.support.warm import Warm

COMMANDS = sorted({command for page in PAGES for command in commands(page)})
SCRIPT = """
import argparse
import torch
import outpace

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--epochs", type=int, default=1)
arguments = parser.parse_args()
model = torch.nn.Linear(4, 1)
optimizer = outpace.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=arguments.lr), model=model)
for _ in range(12 * arguments.epochs):
    optimizer.zero_grad()
    loss = model(torch.ones(2, 4)).pow(2).mean()
    loss.backward()
    optimizer.step(samples=2, loss=loss.item())
optimizer.finish()
print(f"rank {optimizer.stats.rank} is done")
"""
BIN = Path(sys.executable).parent
FIRST_RACE = "outpace race --workload sequences --epochs 6 --compute-ms 50"  #: the README's
TINY_RACE = ("--rounds", "2", "--compute-ms", "1", "--repeat", "1")
NEVER_HERE = {
    r"make ": "targets are run by people and by continuous integration; here `make --dry-run` knows them",
    r"pip install": "needs a package index; here its extra is one that the package has",
    r"srun|torchrun .*\$": "needs a cluster's scheduler",
    r"python -m pytest tests/network": "`make test-network` runs it",
    r"python bench/races.py|python bench/published.py$": "half an hour; here its parts are run, by their own commands",
    r"python -m bench.learning|python -m bench.trainers": "hours, or packages of others; here it is there",
    r"python train.py": "the same script is started by torchrun and by `outpace run`",
}
#: of benchmarks: options that make them small enough to be run
SMALLER = {
    r"python -m bench --only": "--quick",
    r"python -m bench.network": "--quick",
    r"python -m bench.host_faults": "--repeat 1",
    r"python -m bench.restarts": "--kills 1 --ranks 2",
    r"python -m bench.store_ops": "--hosts 2 --strategies allreduce",
    r"python -m bench.data_learning": "--seeds 1",
    r"python -m bench.shared_data": "--batches 10 --epochs 1",
    r"python -m tests.fuzz": "",
    r"python bench/convergence.py": "--seeds 1 --strategies allreduce eager-majority",
    r"python bench/published.py --only": "",
    r"python -m bench": "",
}
NEEDS_ROOT = r"python -m bench.(network|host_faults|junk)"


class Place(NamedTuple):
    """Where a page's reader is: with a script, a recording of it, and a race that has run."""

    directory: Path

    def run(self, command: str) -> str:
        """What an `outpace` command prints. Fails if its exit code is not 0."""
        said = self.directory / "said"
        shutil.rmtree(said, ignore_errors=True)
        said.mkdir()
        code = Warm(shlex.split(command)[1:], said, self.directory).wait(150)
        may_not_fit = "doctor --parameters" in command  # says so by its exit code
        assert code in (0, may_not_fit), (said / "stderr").read_text()
        return (said / "stdout").read_text()

    def start(self, *command: str | Path, seconds: float = 150, **env: str) -> str:
        """What a program of its own prints, likewise."""
        env = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120", **env}
        started = {"cwd": self.directory, "env": env, "timeout": seconds, "capture_output": True, "text": True}
        done = subprocess.run(command, **started)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    here = Place(tmp_path_factory.mktemp("reader"))
    (here.directory / "train.py").write_text(SCRIPT)
    (here.directory / "examples").symlink_to(ROOT / "examples")
    here.start(BIN / "outpace", "run", "-n", "2", "train.py", OUTPACE_LOG_DIR="runs/today")
    shutil.copytree(here.directory / "runs" / "today", here.directory / "runs" / "x")
    here.run("outpace race --ranks 2 --strategies ddp,allreduce --run-dir RUN_DIR --rounds 4 --compute-ms 1 --quiet")
    return here


@pytest.fixture
def copied(tmp_path: Path) -> Place:
    """The repository without its environment: benchmarks write their pictures and pages into it."""
    for name in ("bench", "docs", "tests", "examples"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    return Place(tmp_path)


def chosen(*programs: str, unless: str = "^$") -> list[str]:
    """Commands that begin so, and those that only tests marked `long` run or that run nowhere left out."""
    known = (command for command in COMMANDS if re.match("|".join(programs), command))
    return [command for command in known if not re.match("|".join((unless, *NEVER_HERE)), command)]


def long_if(is_long: bool, command: str) -> object:
    return pytest.param(command, marks=pytest.mark.long) if is_long else command


RACES = chosen("outpace race")
QUICK = chosen("outpace ", unless="outpace (race|run)")
BETWEEN_HOSTS = chosen("torchrun --nnodes")
LAUNCHES = chosen("outpace run", "torchrun", unless="torchrun --nnodes")
BENCHMARKS = chosen("python ")


def test_every_command_has_a_rule() -> None:
    known = {*RACES, *QUICK, *LAUNCHES, *BETWEEN_HOSTS, *BENCHMARKS, *chosen("tensorboard")}
    left = [command for command in COMMANDS if command not in known and not re.match("|".join(NEVER_HERE), command)]
    assert left == []
    assert len(COMMANDS) > 60  # or they were not found
    assert [rule for rule in NEVER_HERE if not any(re.match(rule, command) for command in COMMANDS)] == []


@pytest.mark.parametrize("command", QUICK)
def test_a_command_does_what_a_page_says(command: str, place: Place) -> None:
    smaller = " --steps 20 --quiet" if command.startswith("outpace simulate") else ""
    assert place.run(command + smaller).strip()


@pytest.mark.parametrize(
    "command", [long_if("torchrun" not in command or "examples/" in command, command) for command in LAUNCHES]
)
def test_a_script_is_started_as_a_page_says(command: str, place: Place) -> None:
    program, *arguments = shlex.split(command)
    printed = place.start(BIN / program, *arguments)
    ranks = int(re.search(r"(?:-n|--nproc-per-node) (\d+)", command)[1])
    assert sorted(re.findall(r"rank (\d)(?:: | is done)", printed)) == [str(rank) for rank in range(ranks)]


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("command", BETWEEN_HOSTS)
def test_a_script_is_started_on_several_hosts_as_a_page_says(command: str, place: Place) -> None:
    """All of them this machine, with a rank each; `is_host` says who keeps the store, as they have one name."""
    hosts, port = int(re.search(r"--nnodes (\d+)", command)[1]), free_port()
    line = re.sub(r"node0:\d+", f"127.0.0.1:{port}", command.replace("--master-addr node0", "--master-addr 127.0.0.1"))
    line = re.sub(
        r"--nproc-per-node \d+", "--nproc-per-node 1", re.sub(r"--master-port \d+", f"--master-port {port}", line)
    )
    with ThreadPoolExecutor(hosts) as threads:
        started = [
            threads.submit(_on_host, place, host, line.replace("examples/train.py --epochs 2", "train.py"))
            for host in range(hosts)
        ]
    printed = "".join(each.result() for each in started)
    assert sorted(re.findall(r"rank (\d) is done", printed)) == [str(rank) for rank in range(hosts)]


def _on_host(place: Place, host: int, line: str) -> str:
    arguments = re.sub(r"--node-rank \d+", f"--node-rank {host}", line).split()[1:]
    if "c10d" in arguments:
        arguments[:0] = ["--rdzv-conf", f"is_host={int(host == 0)}"]
    return place.start(BIN / "torchrun", *arguments, seconds=300, OUTPACE_HOST=str(host))


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.mark.parametrize("command", [long_if(race != FIRST_RACE, race) for race in RACES])
def test_a_race_is_run_as_a_page_says(command: str, place: Place) -> None:
    before, separator, script = command.partition(" -- ")
    fewer = ["--ranks", "2"] if command == FIRST_RACE else []
    small = TINY_RACE if "--script" not in command else []
    words = [*without(shlex.split(before), "--epochs"), *fewer, *small, "--quiet", "--json"]
    found = json.loads(place.run(shlex.join(words) + separator + script))
    asked = re.search(r"--strategies (\S+)", command)
    assert [each["system"] for each in found["systems"]] == (asked[1].split(",") if asked else RACED.split(","))
    assert [each["error"] for each in found["systems"]] == [None] * len(found["systems"])
    assert (place.directory / found["report"]).is_file()


def without(words: list[str], option: str) -> list[str]:
    """An option and its value left out: how long a race lasts can be said once."""
    at = words.index(option) if option in words else len(words)
    return words[:at] + words[at + 2 :]


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("command", BENCHMARKS)
def test_a_benchmark_runs(command: str, copied: Place) -> None:
    if re.match(NEEDS_ROOT, command) and (reason := namespaces.why_not()):
        pytest.skip(reason)
    smaller = next(options for start, options in SMALLER.items() if re.match(start, command))
    _, *arguments = shlex.split(f"{command} {smaller}")
    assert copied.start(sys.executable, *arguments, seconds=1200).strip()


def test_every_benchmark_is_there() -> None:
    """Also those that take hours."""
    modules = {found[1] for command in COMMANDS if (found := re.match(r"python (?:-m )?(bench[\w./]*)", command))}
    assert len(modules) > 10
    for module in modules:
        file = ROOT / (module if module.endswith(".py") else module.replace(".", "/"))
        assert file.with_suffix(".py").is_file() or (file / "__main__.py").is_file(), module


def test_make_knows_its_targets() -> None:
    targets = sorted({command.split()[1] for command in COMMANDS if command.startswith("make ")})
    assert "demo" in targets
    for target in targets:
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target


def test_extras_to_install_are_extras_of_the_package() -> None:
    wanted = {name for command in COMMANDS if command.startswith("pip ") for name in re.findall(r"\[(\w+)\]", command)}
    declared = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2]
    assert wanted
    assert wanted <= set(re.findall(r"^(\w+) = ", declared, re.MULTILINE))


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_tutorial_goes_from_ddp_to_outpace(tmp_path: Path) -> None:
    page, reader = ROOT / "docs" / "tutorial.md", Place(tmp_path)
    (before,), (change,) = blocks(page, "python"), blocks(page, "diff")
    after = before
    for hunk in change.split("@@\n")[1:]:
        lines = hunk.splitlines(keepends=True)
        old, new = ("".join(line[1:] for line in lines if line[0] != other) for other in "+-")
        assert after.count(old) == 1, old
        after = after.replace(old, new)
    for script in (before, after):
        (tmp_path / "train.py").write_text(script.replace("range(200)", "range(20)"))
        printed = reader.start(BIN / "torchrun", "--nproc-per-node", "4", "train.py")
        assert sorted(re.findall(r"rank (\d): [\d.]+ s, loss [\d.]+", printed)) == list("0123")
    assert "4 ranks under ddp: " in reader.run("outpace advise runs/today")
    assert "4 ranks, strategy auto" in reader.run("outpace trace runs/x")


def test_tensorboard_finds_what_a_run_wrote(place: Place) -> None:
    (command,) = chosen("tensorboard")
    program, *arguments = shlex.split(command)
    assert "loss" in place.start(BIN / program, *arguments, "--inspect")


def test_advice_looks_as_the_page_shows_it(place: Place) -> None:
    """The same sentences and columns, with other figures."""
    (shown,) = outputs(ROOT / "docs" / "simulation.md")
    printed = " ".join(place.run("outpace advise runs/today").split())
    begin, header, end = re.search(r"^(.*?)\.\.\..*?(strategy .*?)\n.*(Recommendation:)", shown, re.DOTALL).groups()
    figures = re.compile(r"\\?[\d.]+(\\?%)?")
    sentence = figures.sub(lambda _: r"[\d.]+%?", re.escape(" ".join(begin.replace("ddp", "X").split()))).replace(
        "X", r"\S+"
    )
    assert re.search(sentence, printed), printed
    assert " ".join(header.split()) in printed
    assert end in printed
