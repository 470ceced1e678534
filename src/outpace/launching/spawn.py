"""`spawn`: ranks from a function, for notebooks and tests. Owns the children: none survives the call.

A rank that raises ends the run, and its traceback is what the caller sees. A rank that is killed does not: the others
go on if their strategy can, and its result is None.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

from outpace.errors import OutpaceError, RankFailed
from outpace.job.environment import HOST, environment_of
from outpace.job.store import open_store
from outpace.launching.leash import die_with_parent
from outpace.launching.signals import cause, defer_sigint

log = logging.getLogger("outpace")

_STARTED, _STARTED_COLD = b"", b"cold"  #: what a rank sends before it calls the function
_PRELOADED = "outpace.launching.preload"
_GUARD = 'if __name__ == "__main__":'


def spawn(
    fn: Callable[..., Any], ranks: int, args: Sequence[Any] = (), env: dict[str, str] | None = None, hosts: int = 1
) -> list[Any]:
    """Runs `fn(*args)` once for each rank, in processes of their own, and returns what each returned.

    Blocks until all have ended. The first exception is raised here as `RankFailed` with its traceback, and the other
    ranks are ended; so they are when this call is interrupted. Each process finds RANK, WORLD_SIZE and the rest in
    its environment, as under torchrun, and may use `torch.distributed` too. With `hosts`, the ranks count as those of
    so many machines and meet as machines do: through the loopback network, not through shared memory.

    Ranks import the script that calls this, so it must do so under `if __name__ == "__main__":`. A function that is
    typed into a notebook or a shell cannot be imported; its ranks are forked, and compute in one thread each.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise OutpaceError(
            f"outpace.spawn was called again by a rank, which imports the script to find its function. Put the "
            f"call, and everything that only the launcher should do, under `{_GUARD}`"
        )
    if not isinstance(ranks, int) or ranks < 1:
        raise OutpaceError(f"spawn(ranks={ranks!r}): at least one rank is needed")
    if not isinstance(hosts, int) or not 1 <= hosts <= ranks:
        raise OutpaceError(f"spawn(ranks={ranks}, hosts={hosts!r}): every host needs at least one rank")
    if not callable(fn) or not isinstance(args, Sequence):
        raise OutpaceError(f"spawn({fn!r}, args={args!r}): a function is needed, and a sequence of its arguments")
    context = _context(fn)
    is_from_server = context.get_start_method() == "forkserver"
    if is_from_server:
        _refuse_what_has_no_name(fn)
    threads = {} if is_from_server else _threads_after_fork(env)
    store = open_store()
    children: list[_Spawned] = []
    try:
        for rank in range(ranks):
            environment = environment_of(rank, ranks, store.port, hosts) | (env or {}) | threads
            children.append(_start(context, fn, args, rank, environment))
        return _gather(children, is_from_server)
    finally:
        _end(children)
        del store  # kept until now: the ranks meet through it, and none of them owns it


def _refuse_what_has_no_name(fn: Callable[..., Any]) -> None:
    """Its arguments are not tried: locks can be sent only to a process that is just starting."""
    try:
        pickle.dumps(fn)
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise OutpaceError(
            f"the function cannot be sent to the ranks ({error}). A rank imports it by its "
            "name: write it with `def` at the top of its file, not as a lambda or inside another function"
        ) from error
    except RuntimeError:
        return  # a lock, which can be sent while a process is started and at no other time


class _Spawned:
    def __init__(self, process: Any, pipe: Connection, rank: int) -> None:
        self.process, self.pipe, self.rank = process, pipe, rank
        self.has_started = False  #: its process got as far as calling the function


def _context(fn: Callable[..., Any]) -> Any:
    """Children from a server that has imported torch once. A function that is in no file needs a plain fork."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    is_piped = script is not None and not os.path.exists(script)  # it is "<stdin>", which no rank could import
    if is_piped or (script is None and fn.__module__ == "__main__"):
        return multiprocessing.get_context("fork")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([_PRELOADED])
    resource_tracker.ensure_running()  # first: starting it would lift the block
    with defer_sigint():  # the server inherits that, so that Ctrl-C while it imports torch reaches the caller alone
        forkserver.ensure_running()
    return context


def _threads_after_fork(env: dict[str, str] | None) -> dict[str, str]:
    """One thread: OpenMP's threads do not survive a fork, and a process that counts on them waits forever."""
    asked = (env or {}).get("OMP_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS", "1")
    if asked != "1":
        log.warning(
            "OMP_NUM_THREADS=%s, but ranks whose function or script is not in a file are forked, and compute in one "
            "thread each. Put the function into a module, and call outpace.spawn from a script or a notebook",
            asked,
        )
    return {"OMP_NUM_THREADS": "1"}


def _start(context: Any, fn: Callable[..., Any], args: Sequence[Any], rank: int, env: dict[str, str]) -> _Spawned:
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(theirs, env, fn, tuple(args)), name=f"rank {rank}")
    process.start()
    theirs.close()
    return _Spawned(process, ours, rank)


def _child(pipe: Connection, environment: dict[str, str], fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """The life of one rank: its result or its traceback goes through the pipe."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller handles Ctrl-C and ends us
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.environ.update(environment)
    is_warm = _PRELOADED in sys.modules
    pipe.send_bytes(_STARTED if is_warm else _STARTED_COLD)
    import torch

    from outpace import lifetimes
    from outpace.engines.cluster import supervisor

    if is_warm and HOST in environment and environment["LOCAL_RANK"] == "0":
        supervisor.fork_server.fork()  # nothing runs here yet
    if "OMP_NUM_THREADS" in os.environ:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    try:
        answer = (True, fn(*args))
        lifetimes.end_all()
        message = pickle.dumps(answer)
    except BaseException as error:
        message = pickle.dumps((False, f"{type(error).__name__}: {error}\n\n{traceback.format_exc()}"))
    pipe.send_bytes(message)
    pipe.close()


def _gather(children: list[_Spawned], is_from_server: bool) -> list[Any]:
    results: list[Any] = [None] * len(children)
    is_cold = False
    killed: list[str] = []
    running = list(children)
    while running:
        ready = wait([end for child in running for end in (child.pipe, child.process.sentinel)])
        for child in [c for c in running if c.pipe in ready or c.process.sentinel in ready]:
            answer = _answer(child)
            if answer in (_STARTED, _STARTED_COLD):
                child.has_started = True
                is_cold = is_cold or answer == _STARTED_COLD
                continue
            running.remove(child)
            if answer is None:
                child.process.join()
                _check_started(child)
                killed.append(f"rank {child.rank} ended with {cause(child.process.exitcode)}")
                log.warning("%s; the others go on if their strategy allows it", killed[-1])
                continue
            good, value = pickle.loads(answer)
            if not good:
                before = f" (before that, {'; '.join(killed)})" if killed else ""
                raise RankFailed(f"rank {child.rank} raised{before}: {value}", child.rank)
            results[child.rank] = value
    if is_cold and is_from_server:
        log.warning(
            "this program had started multiprocessing's fork server before it called outpace.spawn, so that each rank "
            "had to import torch by itself, which takes seconds. Call outpace.spawn first, or put "
            'multiprocessing.set_forkserver_preload(["%s"]) before whatever starts the server',
            _PRELOADED,
        )
    if len(killed) == len(children):
        raise RankFailed(f"no rank finished: {'; '.join(killed)}", children[0].rank)
    return results


def _answer(child: _Spawned) -> bytes | None:
    """What the rank sent before it ended. Its pipe alone does not tell that: processes it forked may hold it open."""
    try:
        return child.pipe.recv_bytes() if child.pipe.poll() else None
    except EOFError:
        return None


def _check_started(child: _Spawned) -> None:
    """A rank that never started was not killed: no strategy can compensate for it."""
    if not child.has_started and child.process.exitcode > 0:
        raise RankFailed(
            f"rank {child.rank} ended with {cause(child.process.exitcode)} before it called the function; the reason "
            f"is printed above. Each rank imports the script: it must call outpace.spawn under `{_GUARD}`, and all "
            "that it imports must be available to its ranks, too",
            child.rank,
        )


def _end(children: list[_Spawned]) -> None:
    for child in children:
        if child.process.is_alive():
            child.process.kill()
    for child in children:
        child.process.join()
        child.pipe.close()
