"""How the ranks of one host find one arena. Owns the announcement in the store that torchrun provides.

The host's first rank makes the arena, unless one is announced already: then it, too, was restarted. Others open the
files through /proc of a living member, or by name where the files have names. The arena itself needs no store.

There is one announcement, which names the arena and everybody who has its files open; it is only ever replaced as a
whole, by who has read the one before. So there cannot be two arenas, whoever is killed or stopped at whatever moment.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from outpace.engines.agreement import check_agreement
from outpace.engines.arena import arena
from outpace.engines.arena.arena import Files
from outpace.engines.arena.layout import ArenaLayout
from outpace.engines.engine import why_over
from outpace.errors import ArenaInvalid, TimedOut, TrainingOver

LOOK_EVERY_S = 0.05  #: for a new announcement, when everybody in the last one is dead

Note = dict[str, Any]  #: the announcement: "job", "directory", and "holders": rank -> process id and descriptors


class Rendezvous:
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
        self._prepare = prepare  # does what has to be done in a new arena before anybody finds it
        self._timeout_s = timeout_s
        self._restarts = restarts  # whoever dies is started again

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
            if makes:  # somebody was quicker
                arena.remove_directory(files)
            files.close()

    def end(self) -> None:
        """All ranks have finished: whoever is started again need not look for them."""
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
        """The announcement; nothing for the rank that makes the first one."""
        if self._rank == self._ranks[0] and not self._store.check([self._key]):
            return ""
        try:
            self._store.wait([self._key], timedelta(seconds=max(0.001, deadline - time.monotonic())))
        except TimedOut as error:
            raise self._timed_out() from error
        return str(self._store.get(self._key).decode())

    def _timed_out(self) -> TimedOut:
        return TimedOut(
            f"[rank {self._rank}] rank {self._ranks[0]} did not open an arena within {self._timeout_s:.0f} s. See "
            "whether it started, and whether it constructed its DistributedOptimizer"
        )

    def _open(self, note: Note) -> Files | None:
        """Through whichever holder still lives. None if all are dead, or about to be, and are being started again."""
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
    """Whether that process has the files open. One that ends closes them before it is gone, and its number may be
    another process's, in a container that was started again."""
    try:
        if arena.NAMES[0] not in Path(os.readlink(f"/proc/{holder['pid']}/fd/{holder['fds'][0]}")).name:
            return False
        return Path(f"/proc/{holder['pid']}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except PermissionError:
        return True  # nobody may look
    except OSError:
        return False
