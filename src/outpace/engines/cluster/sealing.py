"""Who may take part: seals on everything that goes through the store. Owns the key's use, not its way to the hosts.

The store has no password: whoever reaches its port can read, write and delete. So every value carries an HMAC with a
key that is not in the store, over the value and its place. Entries of the log also carry the seal before them, so that
none can be left out, moved or replayed. Junk can stop a job; it cannot become part of a round.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]

from outpace.errors import OutpaceError

SEAL_BYTES = 32


class Tampered(OutpaceError):
    """Something in the store was not written by this job."""


def seal(key: bytes, place: str, value: bytes, before: bytes = b"") -> bytes:
    return value + _digest(key, place, value, before)


def unseal(key: bytes, place: str, sealed: bytes, before: bytes = b"") -> bytes:
    """The value. Raises if the seal is not this job's, for this place."""
    value, found = sealed[:-SEAL_BYTES], sealed[-SEAL_BYTES:]
    if not hmac.compare_digest(found, _digest(key, place, value, before)):
        raise Tampered(
            f"the store holds something under {place} that no rank of this job wrote: another job or another person "
            "uses its port, or OUTPACE_TOKEN is not the same on all hosts. Nothing was applied from it; start again "
            "on a port of your own, or restrict who reaches it"
        )
    return value


def _digest(key: bytes, place: str, value: bytes, before: bytes) -> bytes:
    return hmac.digest(key, b"\0".join((place.encode(), before, value)), "sha256")


class SealedStore(Store):
    """A store in which everything has a seal. c10d backends meet in one: addresses found there are those of agents."""

    def __init__(self, inner: Any, key: bytes, prefix: str) -> None:
        super().__init__()
        self._inner, self._key, self._prefix = inner, key, prefix

    def _at(self, name: str) -> str:
        return f"{self._prefix}/{name}"

    def set(self, name: str, value: bytes | str) -> None:
        plain = value.encode() if isinstance(value, str) else bytes(value)
        self._inner.set(self._at(name), seal(self._key, self._at(name), plain))

    def get(self, name: str) -> bytes:
        return unseal(self._key, self._at(name), self._inner.get(self._at(name)))

    def multi_get(self, names: Sequence[str]) -> list[bytes]:
        there = [self._at(name) for name in names]
        found = self._inner.multi_get(there)
        return [unseal(self._key, place, sealed) for place, sealed in zip(there, found, strict=True)]

    def compare_set(self, name: str, expected: bytes | str, desired: bytes | str) -> bytes:
        """Writes if the key has the expected value or none; returns the value afterwards."""
        place = self._at(name)
        plain = [value.encode() if isinstance(value, str) else value for value in (expected, desired)]
        before, after = (seal(self._key, place, value) if value else b"" for value in plain)
        return unseal(self._key, place, self._inner.compare_set(place, before, after))

    def wait(self, names: list[str], timeout: timedelta | None = None) -> None:
        there = [self._at(name) for name in names]
        self._inner.wait(there) if timeout is None else self._inner.wait(there, timeout)

    def check(self, names: list[str]) -> bool:
        return bool(self._inner.check([self._at(name) for name in names]))

    def add(self, name: str, amount: int) -> int:
        """Counts. Has no seal: a wrong count only makes somebody wait in vain."""
        return int(self._inner.add(self._at(name), amount))

    def delete_key(self, name: str) -> bool:
        return bool(self._inner.delete_key(self._at(name)))

    def set_timeout(self, timeout: timedelta) -> None:
        self._inner.set_timeout(timeout)
