"""The job's rendezvous store, as ranks use it while they start: each question is answered in time, or it is lost.

Its own timeouts do not bound it: a call hangs for ever when the process that holds the store is stopped, and nothing
can interrupt one. So each is made in a thread of its own, which is left to itself then.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from torch.distributed import DistNetworkError, DistStoreError, TCPStore  # type: ignore[attr-defined]

from outpace.errors import OutpaceError, StoreLost, TimedOut

_GRACE_S = 1.0  #: an answer may come so much later than the store itself would have given up

T = TypeVar("T")


class MeetingStore:
    """A c10d store whose calls raise `StoreLost`, or `TimedOut` when it answers that something did not come."""

    def __init__(self, where: str, timeout_s: float) -> None:
        """Blocks until the store can be reached."""
        self._where, self._timeout_s = where, timeout_s
        self._inner = self._ask(lambda: _connected(timeout_s))

    def set(self, key: str, value: bytes | str) -> None:
        """Writes."""
        self._ask(lambda: self._inner.set(key, value))

    def get(self, key: str) -> bytes:
        """Waits until it is there."""
        return bytes(self.multi_get([key])[0])

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Waits until all are there."""
        self.wait(keys)
        return list(self._ask(lambda: self._inner.multi_get(list(keys))))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Until all are there; raises `TimedOut` if the store still answers then."""
        timeout = timeout or timedelta(seconds=self._timeout_s)
        self._ask(lambda: self._inner.wait(list(keys), timeout), timeout.total_seconds())

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all are there."""
        return bool(self._ask(lambda: self._inner.check(list(keys))))

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        """Writes if what is there is what was expected, or nothing is; returns what is there then."""
        return bytes(self._ask(lambda: self._inner.compare_set(key, expected, desired)))

    def add(self, key: str, amount: int) -> int:
        """Counts."""
        return int(self._ask(lambda: self._inner.add(key, amount)))

    def delete_key(self, key: str) -> bool:
        """Takes it out."""
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
        if isinstance(cause, DistStoreError) and "timeout" in str(cause):
            error: OutpaceError = TimedOut(f"{self._where} {_first_line(cause)}")
        elif cause is None or isinstance(cause, (DistNetworkError, DistStoreError, ConnectionError)):
            error = self._lost(f"no answer for {self._timeout_s:.0f} s" if cause is None else _first_line(cause))
        else:
            return cause
        error.__cause__ = cause
        return error

    def _lost(self, why: Any) -> StoreLost:
        return StoreLost(
            f"{self._where} the store at {address()}, through which ranks meet, cannot be reached ({why}). See whether "
            "the process that holds it runs (torchrun on the first host, or rank 0), and whether its port is open"
        )


def _connected(timeout_s: float) -> Any:
    """As torch's own rendezvous does it, but with this timeout, and not waiting: who is missing is named later."""
    is_torchruns = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    is_holder = not is_torchruns and os.environ["RANK"] == "0"
    return TCPStore(
        *(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])),
        is_master=is_holder,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
        multi_tenant=is_holder,
    )


def address() -> str:
    """Of the store."""
    return f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"


def _first_line(error: BaseException | None) -> str:
    return str(error).splitlines()[0] if str(error) else repr(error)
