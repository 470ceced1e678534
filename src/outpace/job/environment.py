"""Who this process is among the ranks, who shares its machine, and what it and its launcher tell each other.

Owns reading what the launcher or torch.distributed says. Guesses nothing: what is not said is found out from the
other ranks, or reported as missing.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from outpace.errors import BelowQuorum, CannotRejoin, OutpaceError, TimedOut, TrainingOver
from outpace.job.machine import machine
from outpace.job.store import LOOPBACK, MeetingStore, store_of_group

log = logging.getLogger("outpace")

STRATEGY = "OUTPACE_STRATEGY"  #: a strategy that overrides the script's argument
HOST = "OUTPACE_HOST"  #: the host a rank counts as, for several hosts on one machine
LOG_DIR = "OUTPACE_LOG_DIR"  #: likewise, where to record
LIFE = "OUTPACE_LIFE"  #: how often this rank was started, from 1
RESTARTS = "OUTPACE_RESTARTS"  #: set if a rank that dies is started again
MIN_RANKS = "OUTPACE_MIN_RANKS"  #: overrides the script's argument

_OTHER_LAUNCHERS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")  #: set by mpirun and srun
_STORE_TIMEOUT = timedelta(seconds=20)
_FINAL = (BelowQuorum, CannotRejoin, TrainingOver)  #: no restart can change these
_meetings = itertools.count()


@dataclass(frozen=True)
class Place:
    rank: int
    world: int
    local_world: int | None  #: ranks on this machine; None while unknown
    host: str = ""  #: a name of its host

    @property
    def name(self) -> str:
        several = HOST in os.environ or self.local_world not in (None, self.world)
        return f"[rank {self.rank}, host {self.host}]" if several else f"[rank {self.rank}]"

    @property
    def is_one_host(self) -> bool:
        return self.local_world == self.world and HOST not in os.environ


class Group(NamedTuple):
    rank: int
    world: int


class Gathering(NamedTuple):
    place: Place  #: with all that is known of who shares this machine
    store: MeetingStore | None  #: the job's rendezvous store; None for a rank that is alone
    name: str  #: equal on all ranks because they make their optimizers in the same order


def whereami() -> Place:
    """As torch.distributed says once it is initialised, else as the launcher's variables say; alone without both."""
    return place_of(os.environ, group())


def group() -> Group | None:
    if not dist.is_available() or not dist.is_initialized():
        return None
    return Group(dist.get_rank(), dist.get_world_size())


def place_of(said: Mapping[str, str], initialised: Group | None) -> Place:
    """This rank's place by its environment variables and by its group, which is right where they differ.

    >>> place_of({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "0"}, None)
    Place(rank=1, world=4, local_world=4, host='0')
    """
    if initialised is None:
        world = _world(said)
        rank, is_described = _rank(said, world), True
    else:
        rank, world = initialised
        facts = {"RANK": str(rank), "WORLD_SIZE": str(world)}
        others = {name: said[name] for name, fact in facts.items() if said.get(name, fact) != fact}
        if others:
            _say_once(
                f"torch.distributed was initialised as rank {rank} of {world}, and the environment says "
                f"{', '.join(f'{name}={value}' for name, value in others.items())}: outpace uses the former"
            )
        is_described = not others
    local = _local_world(said, world) if is_described else None
    if world == 1:
        local = 1
    label = said.get("GROUP_RANK") or said.get("NODE_RANK") if local is not None else None
    return Place(rank, world, local, said.get(HOST) or label or machine())


def _world(said: Mapping[str, str]) -> int:
    world = _number(said, "WORLD_SIZE")
    if world is None:
        others = [name for name in ("RANK", "LOCAL_RANK") if (_number(said, name) or 0) > 0]
        others += [name for name in ("LOCAL_WORLD_SIZE", *_OTHER_LAUNCHERS) if said.get(name, "1") != "1"]
        if others:
            raise _missing("WORLD_SIZE", f"{others[0]}={said[others[0]]} says that there are others")
        return 1
    if world < 1:
        raise OutpaceError(f"WORLD_SIZE={world}: a world has at least one rank; start with torchrun")
    return world


def _rank(said: Mapping[str, str], world: int) -> int:
    """RANK, or what follows from the place on its machine: ranks are numbered machine by machine."""
    rank = _number(said, "RANK")
    if rank is None:
        node, local, local_world = (_number(said, name) for name in ("NODE_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))
        if world == 1:
            rank = 0
        elif local is None:
            raise _missing("RANK", f"WORLD_SIZE={world} says that there are others")
        elif node == 0 or local_world == world:
            rank = local
        elif node is None or local_world is None:
            missing = "NODE_RANK" if node is None else "LOCAL_WORLD_SIZE"
            raise _missing(f"RANK (or {missing})", f"LOCAL_RANK={local} alone does not tell it")
        else:
            rank = node * local_world + local
    if not 0 <= rank < world:
        raise OutpaceError(f"RANK={rank} is not in a world of {world} ranks; start with torchrun")
    return rank


def _local_world(said: Mapping[str, str], world: int) -> int | None:
    local = _number(said, "LOCAL_WORLD_SIZE")
    if local is not None and not 1 <= local <= world:
        raise OutpaceError(f"LOCAL_WORLD_SIZE={local} does not fit into WORLD_SIZE={world}; start with torchrun")
    return local


def _number(said: Mapping[str, str], name: str) -> int | None:
    try:
        return int(said[name]) if name in said else None
    except ValueError as error:
        raise OutpaceError(f"{name} must be a whole number: {error}") from error


def _missing(name: str, why: str) -> OutpaceError:
    return OutpaceError(
        f"{name} is not set, so this process does not know which rank it is ({why}). Call "
        "torch.distributed.init_process_group() first, start with torchrun or `outpace run`, or set the variable; "
        "WORLD_SIZE=1 for a process that trains alone"
    )


@functools.cache
def _say_once(text: str) -> None:
    log.warning(text)


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


def refuse_late_group(world: int) -> None:
    """Raises if a process whose world was itself has been told since then that it is one of several."""
    now = group()
    if world == 1 and now is not None and now.world > 1:
        raise OutpaceError(
            f"torch.distributed was initialised as rank {now.rank} of {now.world} after this DistributedOptimizer was "
            "made, which trains alone because nothing indicated other ranks. Call init_process_group() first"
        )


def gather(place: Place, timeout_s: float) -> Gathering:
    """Reaches the job's store, and finds out who shares this machine if it was not said. Blocks until that is known."""
    store = _store_of(place, timeout_s)
    name = f"{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{next(_meetings)}"
    if store is not None and (place.local_world is None or group() is not None):
        place = _settled(place, store, name, timeout_s)
    return Gathering(place, store, name)


def _settled(place: Place, store: MeetingStore, name: str, timeout_s: float) -> Place:
    """The hosts that launchers named, if they did for every rank, else the machines. All ranks decide alike."""
    number = name.partition("/")[2]  # not the attempt: of a host that is started again, each launcher counts its own
    keys = [f"outpace/places/{number}/{rank}" for rank in range(place.world)]
    told = None if place.local_world is None and HOST not in os.environ else place.host
    store.set(keys[place.rank], json.dumps([told, machine()]))
    try:
        places = [json.loads(value) for value in store.multi_get(keys)]
    except TimedOut as error:
        missing = [rank for rank, key in enumerate(keys) if not store.check([key])]
        raise TimedOut(
            f"{place.name} ranks {missing} did not come within {timeout_s:.0f} s. See whether they started, and "
            "whether they constructed their DistributedOptimizer"
        ) from error
    if place.local_world is not None and all(told for told, _ in places):
        return place
    hosts = [told if all(each for each, _ in places) else here for told, here in places]
    return replace(place, local_world=hosts.count(hosts[place.rank]), host=hosts[place.rank])


def _store_of(place: Place, timeout_s: float) -> MeetingStore | None:
    """None for a rank that is alone. Blocks until it can be reached."""
    if place.world == 1:
        return None
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing and store_of_group() is None:
        raise OutpaceError(
            f"{' and '.join(missing)} not set, so the ranks cannot find each other. Start with "
            "`torchrun --nproc-per-node N train.py`, or use outpace.spawn(fn, ranks)"
        )
    if not dist.is_available():
        raise OutpaceError("this torch was built without torch.distributed, which outpace needs to start")
    return MeetingStore(place.name, timeout_s, holds=place.rank == 0)


def joined_store() -> Any:
    """The same store, for a process that is not a rank."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(address, port, is_master=False, timeout=_STORE_TIMEOUT)


# -- a rank and the launcher that supervises it: `outpace run`, and nobody else so far --------------------------------
# The launcher says through the environment how it launches. A rank leaves in the launcher's store what that must
# know to decide whether a restart can help.


class Report:
    """What one life of a rank reports. Rank and launcher each have one."""

    def __init__(self, store: Any, rank: int, life: int) -> None:
        self._store, self._where = store, f"outpace/lives/{rank}/{life}"

    def add(self, what: str) -> None:
        """Counts: a training that this rank "joined", one that it "finished", or "left" when its script ended."""
        self._store.add(f"{self._where}/{what}", 1)

    def count(self, what: str) -> int:
        return int(self._store.add(f"{self._where}/{what}", 0))

    def give_up(self, error: BaseException) -> None:
        self._store.set(f"{self._where}/error", type(error).__name__)

    @property
    def error(self) -> str:
        """The name of an error that no restart can change, or an empty string."""
        key = f"{self._where}/error"
        return str(self._store.get(key).decode()) if self._store.check([key]) else ""


def life() -> int:
    """How often this rank was started; 1 where nobody counts."""
    return int(os.environ.get(LIFE, "1"))


def rules_of_launcher() -> dict[str, Any]:
    wanted: dict[str, Any] = {"restarts": RESTARTS in os.environ}
    least = os.environ.get(MIN_RANKS)
    if least:
        if not least.isdecimal():
            raise OutpaceError(f"{MIN_RANKS}={least!r} must be a whole number of ranks")
        wanted["min_ranks"] = int(least)
    return wanted


def tell_launcher(what: str) -> None:
    """Tells the launcher, if one listens, that this rank has joined, finished or left a training."""
    report = _own_report()
    if report is not None:
        report.add(what)


def tell_launcher_of(error: object) -> None:
    report = _own_report() if isinstance(error, _FINAL) else None
    if report is not None and isinstance(error, BaseException):
        report.give_up(error)


def _own_report() -> Report | None:
    return Report(joined_store(), int(os.environ["RANK"]), life()) if LIFE in os.environ else None
