"""Opens an engine on one machine: lays out the arena, finds the other ranks, joins. Several hosts start here, too.

Owns how the ranks of one host find one arena: by an announcement in the store that torchrun provides.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from outpace.engines.agreement import check_agreement, description_of
from outpace.engines.arena import arena
from outpace.engines.arena.arena import Files, header_bytes
from outpace.engines.arena.kernel import Arena, Bell, Faults, Life
from outpace.engines.arena.layout import ArenaLayout
from outpace.engines.arena.log import ArenaLog, LogFile
from outpace.engines.arena.memory import ArenaMemory, Helper, Holds, Reducing
from outpace.engines.arena.snapshot import SnapshotStore
from outpace.engines.engine import Drive, Engine, Opened, run, why_over
from outpace.engines.sums import RowSums
from outpace.errors import ArenaInvalid, OutpaceError, TimedOut, TrainingOver
from outpace.job.environment import Gathering
from outpace.protocol.round import Results
from outpace.protocol.rules import Rules
from outpace.replica.replica import OptimizerReplica
from outpace.vector import VectorLayout, packed

LOOK_EVERY_S = 0.05  #: for a new announcement, if all processes in the last one are dead

Note = dict[str, Any]  #: the announcement: "job", "directory", and "holders": rank -> process id and descriptors


class Rendezvous:
    """How the ranks of one host find one arena.

    The host's first rank makes the arena, unless one is announced already, because that rank was restarted. Others open
    the files through /proc of a living member, or by name if the files have names. The arena itself needs no store.

    There is one announcement, which names the arena and all processes that have its files open. It is only ever
    replaced as a whole, by a rank that has read the previous one. So there cannot be two arenas, whichever rank is
    killed or stopped at any moment.
    """

    def __init__(
        self,
        store: Any,
        name: str,
        rank: int,
        ranks: Sequence[int],
        timeout_s: float,
        prepare: Callable[[Files], None] = lambda _: None,
        restarts: bool = False,
    ) -> None:
        self._store = store
        self._key, self._over_key = f"outpace/{name}/arena", f"outpace/{name}/over"
        self._rank = rank
        self._ranks = ranks  # of this host
        self._prepare = prepare  # prepares a new arena before others can find it
        self._timeout_s = timeout_s
        self._restarts = restarts  # whether ranks that die are restarted

    def enter(self, description: dict[str, Any], layout: ArenaLayout, kept: int) -> Files:
        if self._store is None:
            return self._make(description, layout, kept)[0]
        deadline = time.monotonic() + self._timeout_s
        while True:
            said = self._announced(deadline)
            if self._restarts and self._store.check([self._over_key]):
                raise TrainingOver(why_over(self._rank))
            note: Note = json.loads(said) if said else {"holders": {}}
            files = self._open(note) if said else None
            makes = files is None and self._rank == self._ranks[0]
            if makes:
                files, job = self._make(description, layout, kept)
                note = {"job": job.hex(), "directory": files.directory and str(files.directory), "holders": {}}
            elif files is None:
                if time.monotonic() > deadline:
                    raise self._timed_out()
                time.sleep(LOOK_EVERY_S)  # the rank that makes another one is being started
                continue
            else:
                self._compare(files, note, description)
            note["holders"][str(self._rank)] = {"pid": os.getpid(), "fds": files.fds}
            new = json.dumps(note)
            if self._store.compare_set(self._key, said, new) == new.encode():
                return files
            if makes:  # another rank was faster
                arena.remove_directory(files)
            files.close()

    def end(self) -> None:
        """Announces that all ranks have finished, so that a restarted rank need not look for them."""
        if self._store is not None:
            self._store.set(self._over_key, "1")

    def _make(self, description: dict[str, Any], layout: ArenaLayout, kept: int) -> tuple[Files, bytes]:
        arena.check_room(layout, kept)
        files, job = arena.create_files(), secrets.token_bytes(16)
        try:
            arena.write_header(files.arena, layout, job, description)
            arena.reserve(files, layout, kept)
            self._prepare(files)
        except BaseException:
            arena.remove_directory(files)
            files.close()
            raise
        return files, job

    def _compare(self, files: Files, note: Note, description: dict[str, Any]) -> None:
        try:
            check_agreement(description, arena.read_header(files.arena, bytes.fromhex(note["job"])), self._rank)
        except BaseException:
            files.close()
            raise

    def _announced(self, deadline: float) -> str:
        """The announcement; empty for the rank that makes the first one."""
        if self._rank == self._ranks[0] and not self._store.check([self._key]):
            return ""
        try:
            self._store.wait([self._key], timedelta(seconds=max(0.001, deadline - time.monotonic())))
        except TimedOut as error:
            raise self._timed_out() from error
        return str(self._store.get(self._key).decode())

    def _timed_out(self) -> TimedOut:
        return TimedOut(
            f"[rank {self._rank}] rank {self._ranks[0]} did not open an arena within {self._timeout_s:.0f} s. Check "
            "whether it started, and whether it constructed its DistributedOptimizer"
        )

    def _open(self, note: Note) -> Files | None:
        """Opens the files through any living holder. None if all are dead or dying, and being restarted."""
        troubles: list[str] = []
        holders = list(note["holders"].values())
        for holder in holders:
            try:
                return _open_announced(note, holder)
            except (OSError, ArenaInvalid) as error:
                troubles.append(f"process {holder['pid']}: {error}")
        if self._restarts and not any(map(_holds, holders)):
            return None
        raise ArenaInvalid(
            f"[rank {self._rank}] the announced arena cannot be opened ({'; '.join(troubles)}). If the ranks run "
            "in separate containers or under a hardened kernel, point OUTPACE_ARENA_DIR at a directory they share"
        )


def _open_announced(note: Note, holder: Note) -> Files:
    directory = None if note["directory"] is None else Path(note["directory"])
    named = [str(directory / name) for name in arena.NAMES] if directory else None
    files = arena.open_files(named or [f"/proc/{holder['pid']}/fd/{fd}" for fd in holder["fds"]], directory)
    try:
        arena.read_header(files.arena, bytes.fromhex(note["job"]))
    except BaseException:
        files.close()
        raise
    return files


def _holds(holder: Note) -> bool:
    """Whether that process has the files open. A process closes them before it is gone, and in a restarted container
    its number may be another process's."""
    try:
        if arena.NAMES[0] not in Path(os.readlink(f"/proc/{holder['pid']}/fd/{holder['fds'][0]}")).name:
            return False
        return Path(f"/proc/{holder['pid']}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except PermissionError:
        return True  # nobody may look
    except OSError:
        return False


class Plan(NamedTuple):
    """What follows from a replica and its rules: vectors, the arena's layout, and what ranks compare."""

    vector: VectorLayout
    published: VectorLayout
    layout: ArenaLayout
    description: dict[str, Any]


def plan_of(replica: OptimizerReplica, rules: Rules, max_grad_norm: float | None) -> Plan:
    """The plan, equal on all ranks with the same model and rules."""
    vector = VectorLayout.of(replica.named_parameters())
    published = VectorLayout.of((f"published {i}", tensor) for i, tensor in enumerate(replica.published()))
    description = description_of(replica, vector, rules, max_grad_norm)
    layout = ArenaLayout.of(
        world=rules.world,
        slots=Results(rules).slots,
        vector_bytes=vector.nbytes,
        chunks=len(vector.chunks()),
        tensors=len(vector.entries),
        hyper_bytes=len(replica.hyper),
        buffer_bytes=packed(replica.to_exchange())[1],
        extra_bytes=replica.extra_bytes(),
        header_bytes=header_bytes(description),
        rows=rules.rows,
        published_rows=rules.published_rows,
        published_bytes=published.nbytes,
    )
    return Plan(vector, published, layout, description)


class Parts:
    """One rank's arena files and the objects that read them: the parts of an engine on this machine."""

    def __init__(self, plan: Plan, rules: Rules, rank: int, rendezvous: Rendezvous) -> None:
        self.plan, self.rules, self.rank = plan, rules, rank
        self.files: Files = rendezvous.enter(plan.description, plan.layout, rules.max_staleness)
        self.arena = Arena(self.files.arena, plan.layout)
        self.life = Life(self.files.life)
        self.bell = Bell(self.arena.word)
        self.snapshots = SnapshotStore(self.arena)
        self.holds = Holds(self.arena, rank)
        self.faults = Faults()

    def engine(
        self, replica: OptimizerReplica, log: ArenaLog, reducing: Reducing | None, at_end: Callable[[], None] | None
    ) -> Engine:
        plan, exchanged = self.plan, replica.to_exchange()
        views = (self.files, self.arena, self.rank, plan.vector, plan.published, exchanged)
        memory = ArenaMemory(*views, self.snapshots, self.holds, log, reducing, replica.staging)

        def close() -> None:
            log.close()
            memory.close()

        return Engine(self.rank, self.rules, log, memory, replica, close=close, at_end=at_end)


def open_local(
    replica: OptimizerReplica, rules: Rules, gathering: Gathering, max_grad_norm: float | None, timeout_s: float
) -> Opened:
    """A running engine. Blocks until every rank has joined."""
    plan, (place, store, name) = plan_of(replica, rules, max_grad_norm), gathering
    rendezvous = Rendezvous(store, name, place.rank, range(place.world), timeout_s, restarts=rules.restarts)
    parts = Parts(plan, rules, place.rank, rendezvous)
    file, bell = LogFile(parts.files.log), parts.bell
    log = ArenaLog(place.rank, rules, file, parts.snapshots, bell, parts.life, parts.faults, timeout_s)
    sums = RowSums(parts.arena.bytes, plan.vector.chunks(), rules, max_grad_norm)
    helper = Helper(place.rank, parts.arena, sums, parts.holds, log)
    engine = parts.engine(replica, log, helper.help, rendezvous.end if rules.restarts else None)
    start(engine, parts, run)
    return Opened(engine)


def start(engine: Engine, parts: Parts, drive: Drive) -> None:
    """Marks this rank as living and joins. Blocks until every rank has joined."""
    rank, life = engine.rank, parts.life
    if not life.take(rank):
        raise OutpaceError(
            f"rank {rank} is still alive as process {life.holder(rank)}, which may wake up and write. "
            "End it before you start its replacement"
        )
    try:
        parts.holds.release()
        if engine.rules.publishes is None:
            parts.arena.touch_ahead(rank)
        drive(engine.join)
    except BaseException:
        engine.close()
        raise
