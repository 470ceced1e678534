"""A rendezvous store in a process of its own, which can be stopped and killed: `python held_store.py`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import NamedTuple


class Holder(NamedTuple):
    """The process, and what ranks find it by."""

    pid: int
    env: dict[str, str]


@contextlib.contextmanager
def held_store() -> Iterator[Holder]:
    # It asks for the name of everyone who connects, and stands still while no answer comes: shorter than by default.
    env = {**os.environ, "RES_OPTIONS": "timeout:1 attempts:1"}
    process = subprocess.Popen([sys.executable, __file__], env=env, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        yield Holder(process.pid, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.communicate()


if __name__ == "__main__":
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    print(store.port, flush=True)
    time.sleep(3600)
