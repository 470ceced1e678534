"""`spawn` from wherever people type: each works, or says what to do; and nobody else reaches what it opens."""

import os
import subprocess
import sys
from pathlib import Path

import outpace
from outpace.job.store import open_store

COMPUTES = """
import faulthandler, torch, outpace

def work():
    faulthandler.dump_traceback_later(60, exit=True)  # a hang would end here
    model, x = torch.nn.Linear(300, 300), torch.randn(4000, 300)
    with outpace.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), "allreduce", timeout_s=30) as opt:
        for _ in range(2):
            opt.zero_grad()
            model(x).pow(2).mean().backward()
            opt.step()
    return torch.get_num_threads()

torch.set_num_threads(4)
torch.nn.Linear(500, 500)(torch.randn(4000, 500)).sum().backward()  # with all of these threads
print(outpace.spawn(work, 1), outpace.spawn(work, 2))
"""


def python(*arguments: str, typed: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    environment = {**os.environ, **env}
    return subprocess.run(command, input=typed, env=environment, capture_output=True, text=True, timeout=240)


def test_a_script_piped_into_python_that_has_computed_with_many_threads_spawns_its_own_functions():
    done = python("-", typed=COMPUTES, OMP_NUM_THREADS="4")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[1] [1, 1]\n"
    assert "OMP_NUM_THREADS=4, but ranks whose function or script is not in a file are forked" in done.stderr


def test_a_script_without_a_guard_is_told_to_put_one_around_spawn(tmp_path):
    script = tmp_path / "unguarded.py"
    script.write_text("import os, outpace\noutpace.spawn(os.getpid, 2)\n")
    done = python(str(script))
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("outpace.errors.RankFailed: rank ")
    assert 'it must call outpace.spawn under `if __name__ == "__main__":`' in last
    assert "outpace.spawn was called again by a rank, which imports the script" in done.stderr
    assert "the others go on" not in done.stderr


def test_the_store_of_a_job_on_one_machine_listens_on_the_loopback_only():
    store = open_store()
    found = {}
    for kind in ("tcp", "tcp6"):
        for line in Path("/proc/net", kind).read_text().splitlines()[1:]:
            address, port = line.split()[1].split(":")
            if line.split()[3] == "0A" and int(port, 16) == store.port:
                found[kind] = address
    assert found == {"tcp": "0100007F"}
    assert outpace.spawn(os.getpid, 2)
