"""The job's rendezvous store, as ranks use it while they start: a call is answered in time, or the store is lost.

Its own timeouts do not bound it: a call hangs forever when the process that holds the store is stopped, and nothing
can interrupt it. So each call runs in a thread of its own, which is abandoned then.
"""

from __future__ import annotations

import functools
import os
import socket
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed import DistNetworkError, DistStoreError, PrefixStore, TCPStore  # type: ignore[attr-defined]

from outpace.errors import OutpaceError, StoreLost, TimedOut

LOOPBACK = "127.0.0.1"
_LAUNCHED_TIMEOUT = timedelta(minutes=30)
_GRACE_S = 1.0  #: an answer may come so much later than the store itself would have given up

T = TypeVar("T")


class MeetingStore:
    """A c10d store whose calls raise `StoreLost`, or `TimedOut` when it answers that something did not come."""

    def __init__(self, where: str, timeout_s: float, holds: bool = False) -> None:
        """Blocks until the store can be reached. `holds`: this rank opens it where neither torchrun nor a group did."""
        self._where, self._timeout_s = where, timeout_s
        self._of_group = store_of_group()  # kept: it may be this process that holds it, and groups can be destroyed
        self.address = _address_of(self._of_group)  #: None where it has none, and only this machine can reach it
        self._inner = self._ask(functools.partial(self._connected, holds))

    def _connected(self, holds: bool) -> Any:
        """Like torch's own rendezvous, but with this timeout and without waiting: missing ranks are named later."""
        if self.address is None:
            return self._of_group.clone()
        holds = holds and self._of_group is None and self.ends_with_rank_0
        timeout = timedelta(seconds=self._timeout_s)
        return TCPStore(*self.address, is_master=holds, timeout=timeout, wait_for_workers=False, multi_tenant=holds)

    @property
    def ends_with_rank_0(self) -> bool:
        """Whether a rank holds it, and not a launcher that outlives all of them."""
        return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables by which a process that is not a rank finds it."""
        return {} if self.address is None else {"MASTER_ADDR": self.address[0], "MASTER_PORT": str(self.address[1])}

    def set(self, key: str, value: bytes | str) -> None:
        self._ask(lambda: self._inner.set(key, value))

    def get(self, key: str) -> bytes:
        return bytes(self.multi_get([key])[0])

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        self.wait(keys)
        return list(self._ask(lambda: self._inner.multi_get(list(keys))))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Waits for all keys; raises `TimedOut` if the store still answers by then."""
        timeout = timeout or timedelta(seconds=self._timeout_s)
        self._ask(lambda: self._inner.wait(list(keys), timeout), timeout.total_seconds())

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._ask(lambda: self._inner.check(list(keys))))

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        """Writes if the key has the expected value or none; returns the value afterwards."""
        return bytes(self._ask(lambda: self._inner.compare_set(key, expected, desired)))

    def add(self, key: str, amount: int) -> int:
        return int(self._ask(lambda: self._inner.add(key, amount)))

    def delete_key(self, key: str) -> bool:
        return bool(self._ask(lambda: self._inner.delete_key(key)))

    def _ask(self, question: Callable[[], T], timeout_s: float | None = None) -> T:
        answers: list[T] = []
        troubles: list[BaseException] = []

        def ask() -> None:
            try:
                answers.append(question())
            except BaseException as error:
                troubles.append(error)

        thread = threading.Thread(target=ask, name="ask the store", daemon=True)
        thread.start()
        thread.join((self._timeout_s if timeout_s is None else timeout_s) + _GRACE_S)
        if answers:
            return answers[0]
        raise self._error(troubles[0] if troubles else None)

    def _error(self, cause: BaseException | None) -> BaseException:
        if type(cause) in (DistStoreError, RuntimeError) and "timeout" in str(cause).lower():
            error: OutpaceError = TimedOut(f"{self._where} {_first_line(cause)}")
        elif cause is None or isinstance(cause, (DistNetworkError, DistStoreError, ConnectionError)):
            error = self._lost(f"no answer for {self._timeout_s:.0f} s" if cause is None else _first_line(cause))
        else:
            return cause
        error.__cause__ = cause
        return error

    def _lost(self, why: Any) -> StoreLost:
        return StoreLost(
            f"{self._where} the store at {_named(self.address)}, through which ranks meet, cannot be reached ({why}). "
            "See whether the process that holds it runs (torchrun on the first host, or rank 0), and whether its port "
            "is open"
        )


def open_store() -> TCPStore:
    """The store of a job on this machine. The launcher keeps it, so that no rank is special.

    Only this machine can reach it: by itself a store listens on all interfaces, and whoever connects may write there.
    """
    listening = socket.create_server((LOOPBACK, 0))
    port, fd = listening.getsockname()[1], listening.detach()  # the store closes it
    return TCPStore(
        LOOPBACK, port, is_master=True, wait_for_workers=False, timeout=_LAUNCHED_TIMEOUT, master_listen_fd=fd
    )


def store_of_group() -> Any:
    """The store that torch.distributed's default group was initialised with, if it was, without prefixes."""
    if not dist.is_available() or not dist.is_initialized():
        return None
    store = dist.distributed_c10d._get_default_store()
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store


def _address_of(of_group: Any) -> tuple[str, int] | None:
    """Of the group's store, or of the one that the launcher's variables name."""
    if isinstance(of_group, TCPStore):
        return of_group.host, of_group.port
    if "MASTER_ADDR" in os.environ and "MASTER_PORT" in os.environ:
        return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return None


def address() -> str:
    return _named(_address_of(None))


def _named(address: tuple[str, int] | None) -> str:
    return "{}:{}".format(*address) if address else "the file that torch.distributed was initialised with"


def _first_line(error: BaseException | None) -> str:
    return str(error).splitlines()[0] if str(error) else repr(error)
