"""What joins the agents: a c10d backend, on which address, with which certificates. Owns what they listen on.

Gloo does not ask who connects. So a group has to prove itself (`group.Group.prove`), and as soon as it is complete the
kernel drops whatever else knocks: Gloo keeps every connection that says nothing, and its process ends when it runs out
of descriptors.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import resource
import socket
import stat
import struct
import threading
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from outpace.errors import OutpaceError

BACKEND = "OUTPACE_BACKEND"  #: which c10d backend joins the agents, if not Gloo: its name, or module:name
TRANSPORT = "GLOO_DEVICE_TRANSPORT"
CERTIFICATES = tuple(f"{TRANSPORT}_TCP_TLS_{what}" for what in ("PKEY", "CERT", "CA_FILE", "CA_PATH"))

_SO_ATTACH_FILTER, _DROP_ALL = 26, struct.pack("HBBI", 6, 0, 0, 0)  # one instruction of classic BPF: keep 0 bytes
_ERRORS_ONLY = 2  # of FLAGS_caffe2_log_level
_making_a_device = threading.Lock()


def check_backend() -> None:
    """Raises, before anything is started, if agents could not be joined as was asked."""
    if _name() == "gloo":
        _device("127.0.0.1")
    else:
        _plugin(_name())


class Listener(NamedTuple):
    fd: int
    inode: int  #: another one may get the same number later


def connect(store: Store, address: str, place: int, count: int, timeout_s: float) -> tuple[Any, set[Listener]]:
    """(the backend of one group, at one of its places; what it listens on). Blocks until all are connected."""
    timeout = timedelta(seconds=timeout_s)
    if _name() != "gloo":
        return _plugin(_name())(store, place, count, timeout), set()
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timeout
    with _making_a_device:
        before = _listeners()
        options._devices = [_device(address)]
        listeners = _listeners() - before
    return dist.ProcessGroupGloo(store, place, count, options), listeners


def _name() -> str:
    return os.environ.get(BACKEND, "gloo")


def _plugin(name: str) -> Any:
    """What makes a backend that was registered with torch.distributed, by a module if one is named."""
    module, _, name = name.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
    except ImportError as error:
        raise OutpaceError(f"{BACKEND}={module}:{name}: {error}. The hosts' agents import it, too") from error
    plugin = dist.Backend._plugins.get(name.upper())
    if plugin is None or plugin.extended_api:
        raise OutpaceError(
            f"{BACKEND}={name} is not a backend that was registered with torch.distributed here, with a plain "
            "creator function; use gloo, or name the module that registers it: module:name"
        )
    return plugin.creator_fn


def _device(address: str) -> Any:
    """Gloo's end on one address, and on no other. With certificates it speaks TLS or not at all."""
    given = [name for name in CERTIFICATES if os.environ.get(name)]
    if given:
        os.environ.setdefault(TRANSPORT, "TCP_TLS")
        if os.environ[TRANSPORT] != "TCP_TLS":
            raise OutpaceError(f"{' and '.join(given)} are given, but {TRANSPORT}={os.environ[TRANSPORT]} uses none")
    try:
        return dist.ProcessGroupGloo.create_device(hostname=address, lazy_init=False)
    except RuntimeError as error:
        if TRANSPORT not in os.environ:
            raise
        raise OutpaceError(
            f"Gloo of torch {torch.__version__} cannot use {TRANSPORT}={os.environ[TRANSPORT]} "
            f"({str(error).splitlines()[0]}). Nothing is sent in the clear instead: check the certificates, use a "
            "torch that was built with USE_GLOO_WITH_OPENSSL=1, or join the hosts by a network that encrypts"
        ) from error


def address_towards_store() -> str:
    """This host's address on the interface that the rendezvous uses: nothing listens anywhere else."""
    where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    family, kind, _, _, peer = socket.getaddrinfo(*where, type=socket.SOCK_DGRAM)[0]
    with contextlib.closing(socket.socket(family, kind)) as probe:
        probe.connect(peer)
        return str(probe.getsockname()[0])


def stop_accepting(listeners: Iterable[Listener]) -> None:
    """Accepts no new connections; existing ones stay open."""
    program = ctypes.create_string_buffer(_DROP_ALL)
    filter_program = struct.pack("HxxxxxxP", 1, ctypes.addressof(program))
    for listener in set(listeners) & _listeners():
        with socket.socket(fileno=os.dup(listener.fd)) as listening:
            listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filter_program)


def _listeners() -> set[Listener]:
    found = set()
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # it was closed meanwhile, like the one that listed them
            status = os.fstat(fd)
            if stat.S_ISSOCK(status.st_mode):
                with socket.socket(fileno=os.dup(fd)) as there:
                    if there.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                        found.add(Listener(fd, status.st_ino))
    return found


def make_room() -> None:
    """Raises the descriptor limit as far as allowed: until agents stop accepting, strangers can take some."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)


def be_quiet() -> None:
    """Keeps torch's warnings about peers that are gone, with their stacks, off the user's terminal: the agent says what
    matters. A process that was forked has read TORCH_CPP_LOG_LEVEL long ago, so that the flag itself is changed."""
    if "TORCH_CPP_LOG_LEVEL" not in os.environ:
        with contextlib.suppress(OSError, ValueError):  # another build of torch
            library = ctypes.CDLL(str(Path(torch.__file__).with_name("lib") / "libc10.so"))
            ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level").value = _ERRORS_ONLY
