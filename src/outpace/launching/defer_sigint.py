"""When Ctrl-C is heard. Owns the short times in which it would leave something half-made."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ctrl_c_later() -> Iterator[None]:
    """Ctrl-C is heard at the end of this context. Processes that are started in it are deaf to it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
