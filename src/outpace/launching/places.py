"""What a rank finds when it starts: its place in the environment, and a store to meet the others through."""

from __future__ import annotations

import os
import signal
import socket
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]

LOOPBACK = "127.0.0.1"
_STORE_TIMEOUT = timedelta(minutes=30)


def open_store() -> TCPStore:
    """The store of a job on this machine. Whoever starts the ranks keeps it, so that none of them is special.

    Only this machine can reach it: by itself a store listens on all interfaces, and whoever connects may write there.
    """
    listening = socket.create_server((LOOPBACK, 0))
    port = listening.getsockname()[1]
    return TCPStore(
        LOOPBACK,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=_STORE_TIMEOUT,
        master_listen_fd=listening.detach(),  # the store closes it
    )


def environment_of(rank: int, ranks: int, port: int, hosts: int = 1) -> dict[str, str]:
    """What torchrun would set. With `hosts`, the ranks count as those of so many machines."""
    host = rank * hosts // ranks
    here = [other for other in range(ranks) if other * hosts // ranks == host]
    several = {"OUTPACE_HOST": f"host-{host}"} if hosts > 1 else {}
    threads = os.environ.get("OMP_NUM_THREADS") or ("1" if ranks > 1 else "")
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(here.index(rank)),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(len(here)),
        "GROUP_RANK": str(host),
        "GROUP_WORLD_SIZE": str(hosts),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        **({"OMP_NUM_THREADS": threads} if threads else {}),
        **several,
    }


def cause(exitcode: int | None) -> str:
    """How a process ended, in words."""
    if exitcode is not None and exitcode < 0:
        return f"signal {signal.Signals(-exitcode).name}"
    return f"exit code {exitcode}"
