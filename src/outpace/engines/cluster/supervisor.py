"""A rank's supervision of its host's agent: starts one when there is none, and tells it what it needs to know.

Whoever notices first starts one; the kernel's lock decides who that is. An agent that is merely stopped is left alone:
it will go on, and until then nothing can be lost.

Agents are forked by the rank's *fork server*, a process that has imported what an agent needs. Importing torch takes
seconds, and a rank may need several agents: for one optimizer after the other, or because one was killed. A rank cannot
fork them itself: it has threads, and its memory would live on in them. Where ranks are forked from a server that has
imported everything, so is this one. It ends with its rank; agents do not. A request is a set of open files: those of
the arena, a pipe with the launch spec and the environment as JSON, so that nothing is unpickled, and a pipe that the
agent holds open while it lives.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from outpace.engines.arena.kernel import Life
from outpace.engines.cluster.shared_page import RUNNING, SharedPage
from outpace.errors import OutpaceError, TimedOut

_MOST_FILES = 16
_ORPHAN_S = 1.0  #: how long a fork server may outlive a rank whose own children hold its socket open
_PID_BYTES = 8


class AgentProcess:
    """An agent that was asked for."""

    def __init__(self, alive: int) -> None:
        self._alive = alive  # a pipe whose other end is open as long as it lives
        self.pid = 0  #: once it has begun

    def has_ended(self) -> bool:
        """Whether it is gone, and with it all that it forked."""
        while select.select([self._alive], [], [], 0)[0]:
            said = os.read(self._alive, _PID_BYTES)
            if not said:
                return True
            self.pid = int.from_bytes(said, "big")
        return False

    def close(self) -> None:
        os.close(self._alive)


class ForkServer:
    """A rank's. Started with its first agent, unless it was forked before."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def end(self) -> None:
        """It does not answer."""
        self._socket = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def fork(self) -> None:
        """Makes it from this process, which has imported all that it needs, and has no threads yet."""
        from outpace.engines.cluster.agent import live

        ours, theirs = socket.socketpair()
        rank = os.getpid()
        if os.fork() == 0:
            os.setsid()
            os.closerange(3, theirs.fileno())
            os.closerange(theirs.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
            silence = os.open(os.devnull, os.O_RDWR)
            os.dup2(silence, 0)
            os.dup2(silence, 1)
            serve(theirs, rank, live)
        theirs.close()
        self._socket = ours

    def start(self, spec: dict[str, Any], files: tuple[int, ...], env: dict[str, str]) -> AgentProcess:
        """Asks for an agent, and returns at once."""
        if self._socket is None:
            self._begin()
        (spec_out, spec_in), (alive_out, alive_in) = os.pipe(), os.pipe()
        given = [spec_out, alive_in, *files]
        try:
            self._send(given)
        finally:
            os.close(spec_out)
            os.close(alive_in)
        with suppress(BrokenPipeError), open(spec_in, "wb") as pipe:  # it ended at once: the next look sees that
            pipe.write(json.dumps([spec, env]).encode())
        return AgentProcess(alive_out)

    def _send(self, files: list[int]) -> None:
        assert self._socket is not None
        try:
            socket.send_fds(self._socket, [b"."], files)
        except (BrokenPipeError, ConnectionResetError):  # somebody has ended it
            self._begin()
            with suppress(BrokenPipeError, ConnectionResetError):  # it ended at once: the next look sees that
                socket.send_fds(self._socket, [b"."], files)

    def _begin(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "outpace.engines.cluster", str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )


fork_server = ForkServer()  #: this rank's


def _forget_fork_server() -> None:
    """A forked child is not the rank, and has no agents of its own to ask for."""
    global fork_server
    fork_server = ForkServer()


os.register_at_fork(after_in_child=_forget_fork_server)


def serve(connection: socket.socket, rank: int, live: Callable[[dict[str, Any]], None]) -> NoReturn:
    """Forks an agent at each request, as long as its rank lives."""
    _set_name("outpace-forks")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    connection.settimeout(_ORPHAN_S)
    while os.getppid() == rank:
        try:
            message, files, _, _ = socket.recv_fds(connection, 1, _MOST_FILES)
        except TimeoutError:
            continue
        except OSError:
            break
        if not message:
            break
        if os.fork() == 0:
            connection.close()
            _live(files, live)
        for file in files:
            os.close(file)
    os._exit(0)


def _set_name(name: str) -> None:
    """Of this process in `ps -o comm` and `top`, where it can be set."""
    with suppress(OSError):
        Path("/proc/self/comm").write_text(name)


def _live(files: list[int], live: Callable[[dict[str, Any]], None]) -> NoReturn:
    """The agent's process. `files` are as they were sent."""
    code = 1
    try:
        os.setsid()
        _set_name("outpace-agent")
        for number in (signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        given, alive, *rest = files
        os.write(alive, os.getpid().to_bytes(_PID_BYTES, "big"))
        with open(given, "rb") as pipe:
            spec, env = json.loads(pipe.read())
        os.environ.clear()
        os.environ.update(env)
        live({**spec, "fds": tuple(rest)})
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stderr.flush()
        os._exit(code)


MOST_STARTS, WITHIN_S = 5, 60.0
_LOOK_S = 0.1  #: between two looks at whether the agent lives


class LaunchSpec(NamedTuple):
    """All that an agent needs to know. The job's key is in the arena."""

    name: str  #: of the meeting
    host: int
    layout: dict[str, int]
    rules: dict[str, Any]
    chunks: list[tuple[str, int, int]]
    published: list[tuple[str, int, int]]  #: likewise of what is published
    tensors: int
    has_buffers: bool
    max_grad_norm: float | None
    timeout_s: float
    fds: tuple[int, ...]


def cluster_of(name: str) -> str:
    """Where the agents of a job meet in the store."""
    return f"outpace/{name}/cluster"


class AgentSupervisor:
    def __init__(self, spec: LaunchSpec, page: SharedPage, life: Life, where: str, env: dict[str, str]) -> None:
        self._spec, self._page, self._life, self._where = spec, page, life, where
        self._env = env  # by which the agent finds the store
        world = spec.layout["world"]
        self._agent, self._start = world, world + 1  # whose lives: the agent's, and of who is starting one
        self._looked = 0.0
        self._starts: list[float] = []

    def look(self) -> None:
        """Raises if the agent has given up, and starts another one if it is gone. Costs little when called often."""
        self._page.check(self._where)
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return
        self._looked = now
        if not self._life.lives(self._agent) and self._life.take(self._start):
            try:
                if not self._life.lives(self._agent):
                    self._page.check(self._where)
                    self._start_one(now)
            finally:
                self._life.drop(self._start)

    def _start_one(self, now: float) -> None:
        self._starts = [*(s for s in self._starts if now - s < WITHIN_S), now]
        if len(self._starts) > MOST_STARTS:
            raise OutpaceError(
                f"{self._where} the agent of this host ended {MOST_STARTS} times within {WITHIN_S:.0f} s; the reason "
                "is on its standard error, above"
            )
        self._page.status = RUNNING  # whatever became of the last one
        agent = fork_server.start(self._spec._asdict(), self._spec.fds, {**os.environ, **self._env})
        try:
            while not agent.has_ended() and not self._life.lives(self._agent):
                if time.monotonic() - now > self._spec.timeout_s:
                    fork_server.end()
                    if agent.pid:
                        with suppress(ProcessLookupError):
                            os.kill(agent.pid, signal.SIGKILL)
                    raise TimedOut(
                        f"{self._where} the agent of this host, process {agent.pid or 'unknown'}, did not begin within "
                        f"{self._spec.timeout_s:.0f} s. See whether it was stopped, or raise timeout_s"
                    )
                time.sleep(0.005)  # the lock on starting is kept so long
        finally:
            agent.close()
