"""`outpace doctor`: what this machine offers for training, and what to change where it could not start.

Owns the checks. Each does what training does, with the same code: makes shared memory, lets another process open it,
plans the arena of a model. It leaves nothing behind.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outpace.engines.arena import arena
from outpace.engines.arena.arena import amount
from outpace.engines.arena.open import plan_of
from outpace.job.machine import available_bytes, cores
from outpace.strategies import strategy as by_name
from outpace.version import __version__

USUAL_PARAMETERS = 25_000_000  #: as ResNet-50 has
_OPEN = "import os, sys; os.close(os.open(sys.argv[1], os.O_RDWR))"


class State(Enum):
    GOOD = "good"
    NOTE = "note"  #: it works, and could work better
    BAD = "bad"  #: training could not start


class Finding(NamedTuple):
    about: str
    state: State
    what: str
    fix: str = ""


def run(arguments: argparse.Namespace) -> int:
    findings = list(examine(arguments.parameters, arguments.ranks or cores(), arguments.strategy))
    is_bad = any(finding.state is State.BAD for finding in findings)
    if arguments.json:
        found = [{**finding._asdict(), "state": finding.state.value} for finding in findings]
        print(json.dumps({"outpace": __version__, "can_train": not is_bad, "findings": found}, indent=2))
    else:
        show(findings)
    return int(is_bad)


def examine(parameters: int | None, ranks: int, strategy: str) -> Iterator[Finding]:
    """All that is looked at, in the order in which it is shown."""
    yield Finding("processors", State.GOOD, f"{cores()} for this process")
    free = available_bytes()
    yield _memory(free)
    directory, shared = _shared_memory()
    yield shared
    if shared.state is not State.BAD:
        yield _arena(parameters, ranks, strategy, free, directory)
    yield from _torch()
    yield _network()


def _memory(free: int | None) -> Finding:
    if free is None:
        what = "how much is free is unknown, because /proc does not say it: a model that is too large is noticed late"
        return Finding("memory", State.NOTE, what, "mount /proc")
    return Finding("memory", State.GOOD, f"{amount(free)} free, cached files included")


def _shared_memory() -> tuple[str | None, Finding]:
    """Where it lies if it has a name, and whether ranks can share it."""
    about, elsewhere = "shared memory", "point OUTPACE_ARENA_DIR at a directory that all ranks share"
    try:
        files = arena.create_files()
    except OSError as error:
        return None, Finding(about, State.BAD, f"it cannot be made: {error}", elsewhere)
    try:
        base = None if files.directory is None else str(files.directory.parent)
        path = f"/proc/{os.getpid()}/fd/{files.arena}" if files.directory is None else str(files.directory / "arena")
        opened = subprocess.run([sys.executable, "-S", "-c", _OPEN, path], capture_output=True, text=True)
        if opened.returncode:
            said = (opened.stderr.strip().splitlines() or ["no reason"])[-1]
            return base, Finding(about, State.BAD, f"another process cannot open it: {said}", elsewhere)
    finally:
        arena.remove_directory(files)
        files.close()
    if base is None:
        return None, Finding(about, State.GOOD, "anonymous; another process can open it through /proc")
    if "OUTPACE_ARENA_DIR" in os.environ:
        return base, Finding(
            about, State.GOOD, f"files in {base}, as OUTPACE_ARENA_DIR says; another process can open them"
        )
    what = f"files in {base}, because anonymous memory (memfd_create, /proc) is not to be had"
    fix = "allow memfd_create and mount /proc, or make sure that the directory is large enough (--shm-size for docker)"
    return base, Finding(about, State.NOTE, f"{what}; if all ranks are killed, they stay until the next start", fix)


def _arena(parameters: int | None, ranks: int, strategy: str, free: int | None, directory: str | None) -> Finding:
    """What `DistributedOptimizer` would ask for. A model that nobody named is no reason not to train."""
    chosen, count = by_name(strategy), parameters or USUAL_PARAMETERS
    rules = chosen.rules(ranks)
    weight = torch.nn.Parameter(torch.empty(count, device="meta"))
    replica = chosen.replica(torch.optim.SGD([weight], lr=0.1), None)
    need = plan_of(replica, rules, None).layout.usual_bytes(rules.max_staleness)
    replica.release()
    what = f"{amount(need)} for {ranks} ranks of {count:,} parameters in float32 with {strategy}"
    rooms = {"memory": free, directory or "": None if directory is None else shutil.disk_usage(directory).free}
    for where, room in rooms.items():
        if room is not None and room < need:
            place = f"and {amount(room)} are free" + ("" if where == "memory" else f" in {where}")
            more = (
                "more memory for the machine or container"
                if where == "memory"
                else (f"a larger {where} (--shm-size for docker), or OUTPACE_ARENA_DIR at a larger file system")
            )
            state = State.NOTE if parameters is None else State.BAD
            return Finding("arena", state, f"{what}, {place}", f"fewer ranks, a smaller max_staleness, or {more}")
    return Finding("arena", State.GOOD, what)


def _torch() -> Iterator[Finding]:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    count = 0 if accelerator is None else torch.accelerator.device_count()
    devices = (
        "no accelerator: parameters are in host memory" if accelerator is None else f"{count} x {accelerator.type}"
    )
    yield Finding("torch", State.GOOD, f"{torch.__version__}, {devices}")
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    words = "unlimited" if limit == resource.RLIM_INFINITY else amount(limit)
    if accelerator is None:
        yield Finding("locked memory", State.GOOD, f"{words}; only accelerators need it")
    elif limit != resource.RLIM_INFINITY:
        fix = "`ulimit -l unlimited`, or `--ulimit memlock=-1` for a container"
        what = f"{words}: copies from and to the device may need one more pass, see docs/accelerators.md"
        yield Finding("locked memory", State.NOTE, what, fix)
    else:
        yield Finding("locked memory", State.GOOD, words)


def _network() -> Finding:
    """Between hosts, agents connect to each other by this host's name, or by the interface that Gloo is told."""
    name, interface = socket.gethostname(), os.environ.get("GLOO_SOCKET_IFNAME")
    if interface:
        return Finding("network", State.GOOD, f"other hosts reach this one through {interface} (GLOO_SOCKET_IFNAME)")
    try:
        address = str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        fix = "add the name to /etc/hosts, or set GLOO_SOCKET_IFNAME; one host alone needs neither"
        return Finding("network", State.NOTE, f"this host's name, {name}, has no address: {error.strerror}", fix)
    if address.startswith("127.") or address == "::1":
        fix = "set GLOO_SOCKET_IFNAME to the interface of your network; one host alone does not need it"
        return Finding("network", State.NOTE, f"{name} is {address}, which no other host can reach", fix)
    what = f"{name} is {address}. Whoever can reach the ports of a job can join it: keep it in a network you trust"
    return Finding("network", State.GOOD, what)


def show(findings: list[Finding]) -> None:
    colours = {State.GOOD: "green", State.NOTE: "yellow", State.BAD: "bold red"}
    table = Table(box=None, show_header=False, pad_edge=False)
    for finding in findings:
        said = (
            Text(finding.what) if not finding.fix else Text.assemble(finding.what, "\n", ("→ " + finding.fix, "bold"))
        )
        table.add_row(finding.about, Text(finding.state.value, colours[finding.state]), said)
    Console().print(table)
