"""Who this process is among the ranks. Owns reading torchrun's environment and reaching its store."""

from __future__ import annotations

import itertools
import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from outpace.errors import OutpaceError
from outpace.meeting_store import MeetingStore

STRATEGY = "OUTPACE_STRATEGY"  #: a strategy that goes before what a script says
HOST = "OUTPACE_HOST"  #: the host a rank counts as, to have several on one machine
LOG_DIR = "OUTPACE_LOG_DIR"  #: likewise, where to record

_STORE_TIMEOUT = timedelta(seconds=20)
_meetings = itertools.count()


@dataclass(frozen=True)
class Place:
    """This rank's place in the world."""

    rank: int
    world: int
    local_world: int
    host: str = ""  #: a name of its host, if ranks were told that there are several

    @property
    def name(self) -> str:
        """For messages."""
        return f"[rank {self.rank}]" if self.is_one_host else f"[rank {self.rank}, host {self.host}]"

    @property
    def is_one_host(self) -> bool:
        """Whether all ranks run on this machine."""
        return self.local_world == self.world and HOST not in os.environ


def whereami() -> Place:
    """From torchrun's variables, or alone without them."""
    try:
        world = int(os.environ.get("WORLD_SIZE", "1"))
        rank = int(os.environ.get("RANK", "0"))
        local = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    except ValueError as error:
        raise OutpaceError(f"RANK, WORLD_SIZE and LOCAL_WORLD_SIZE must be whole numbers: {error}") from error
    if not 0 <= rank < world:
        raise OutpaceError(f"RANK={rank} does not lie in a world of {world} ranks; start with torchrun")
    return Place(rank, world, local, os.environ.get(HOST) or os.environ.get("GROUP_RANK", socket.gethostname()))


def cores() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def store_of(place: Place, timeout_s: float) -> MeetingStore | None:
    """The job's rendezvous store, or None for a rank that is alone. Blocks until it can be reached."""
    if place.world == 1:
        return None
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise OutpaceError(
            f"{' and '.join(missing)} are not set, so the ranks cannot find each other. Start with "
            "`torchrun --nproc-per-node N train.py`, or use outpace.spawn(fn, ranks)"
        )
    if not dist.is_available():
        raise OutpaceError("this torch was built without torch.distributed, which outpace needs to start")
    return MeetingStore(place.name, timeout_s)


def joined_store() -> Any:
    """The same store, for a process that is no rank."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(address, port, is_master=False, timeout=_STORE_TIMEOUT)


def meeting_name() -> str:
    """A name for the next arena, equal on all ranks because they make their optimizers in the same order."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return f"{attempt}/{next(_meetings)}"
