"""The torchrun line of docs/cluster.md, run on hosts of their own."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

from tests.network.namespaces import ROOT
from tests.network.waiting import until


def test_the_first_command_of_the_page_trains_on_two_hosts(two_hosts):
    page = (ROOT / "docs" / "cluster.md").read_text()
    line = re.findall(r"^    torchrun (.*)$", page, re.MULTILINE)[0]
    words = [word.replace("node0", two_hosts[0].address) for word in shlex.split(line)]
    launched = []
    for host in two_hosts:  # these hosts share one name, by which torchrun would know itself
        itself = ("--local-addr", host.address, "--rdzv-conf", f"is_host={int(host.index == 0)}")
        command = (sys.executable, "-m", "torch.distributed.run", *itself, *words)
        env = {"OMP_NUM_THREADS": "1", "OUTPACE_TOKEN": "a secret of this test"}
        launched.append(host.start(*command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    until(lambda: all(process.poll() is not None for process in launched), 150)
    said = [process.communicate()[0].decode() for process in launched]
    assert [process.returncode for process in launched] == [0, 0], said
    assert len(re.findall(r"^epoch", said[0], re.MULTILINE)) == 2, said[0]
