"""How the ranks of one host find one arena. Owns the announcement in the store that torchrun provides.

The host's first rank makes the arena, unless one is announced already: then it, too, was restarted. Others open the
files through /proc of a living member, or by name where the files have names. The arena itself needs no store.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from outpace.engines.agreement import check_agreement
from outpace.engines.local import arena
from outpace.engines.local.arena import Files
from outpace.engines.local.layout import ArenaLayout
from outpace.errors import ArenaInvalid, TimedOut


class Meeting:
    """The place in the store where the ranks of one optimizer meet."""

    def __init__(
        self,
        store: Any,
        name: str,
        rank: int,
        ranks: Sequence[int],
        timeout_s: float,
        prepare: Callable[[Files], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._name = name
        self._rank = rank
        self._ranks = ranks  # of this host
        self._prepare = prepare  # does what has to be done in a new arena before anybody finds it
        self._timeout = timedelta(seconds=timeout_s)

    def enter(self, description: dict[str, Any], layout: ArenaLayout, kept: int) -> Files:
        """This rank's open files of the common arena."""
        if self._store is None:
            return self._make(description, layout, kept)[0]
        if self._rank == self._ranks[0] and not self._store.check([self._key("arena")]):
            files, job = self._make(description, layout, kept)
            self._announce("arena", files, job)
        else:
            files, job = self._open()
            try:
                check_agreement(description, arena.read_header(files.arena, job), self._rank)
            except BaseException:
                files.close()
                raise
        self._announce(f"member/{self._rank}", files, job)
        return files

    def _make(self, description: dict[str, Any], layout: ArenaLayout, kept: int) -> tuple[Files, bytes]:
        arena.check_room(layout, kept)
        files, job = arena.create_files(), secrets.token_bytes(16)
        try:
            arena.write_header(files.arena, layout, job, description)
            arena.reserve(files, layout, kept)
            self._prepare(files)
        except BaseException:
            arena.remove_directory(files, layout.world)
            files.close()
            raise
        return files, job

    def _announce(self, what: str, files: Files, job: bytes) -> None:
        assert self._store is not None
        directory = None if files.directory is None else str(files.directory)
        note = {"pid": os.getpid(), "fds": files.fds, "directory": directory, "job": job.hex()}
        self._store.set(self._key(what), json.dumps(note))

    def _open(self) -> tuple[Files, bytes]:
        """Through whichever announced member still lives."""
        assert self._store is not None
        try:
            self._store.wait([self._key("arena")], self._timeout)
        except TimedOut as error:
            raise TimedOut(
                f"[rank {self._rank}] rank {self._ranks[0]} did not open an arena within "
                f"{self._timeout.total_seconds():.0f} s. See whether it started, and whether it constructed its "
                "DistributedOptimizer"
            ) from error
        keys = ["arena", *(f"member/{rank}" for rank in self._ranks if rank != self._rank)]
        troubles: list[str] = []
        for key in map(self._key, keys):
            if not self._store.check([key]):
                continue
            note = json.loads(self._store.get(key))
            job = bytes.fromhex(note["job"])
            try:
                return _open_announced(note, job), job
            except (OSError, ArenaInvalid) as error:
                troubles.append(f"process {note['pid']}: {error}")
        raise ArenaInvalid(
            f"[rank {self._rank}] the announced arena cannot be opened ({'; '.join(troubles)}). If the ranks run "
            "in separate containers or under a hardened kernel, point OUTPACE_ARENA_DIR at a directory they share"
        )

    def _key(self, what: str) -> str:
        return f"outpace/{self._name}/{what}"


def _open_announced(note: dict[str, Any], job: bytes) -> Files:
    directory = None if note["directory"] is None else Path(note["directory"])
    named = [str(directory / name) for name in arena.NAMES] if directory else None
    files = arena.open_files(named or [f"/proc/{note['pid']}/fd/{fd}" for fd in note["fds"]], directory)
    try:
        arena.read_header(files.arena, job)
    except BaseException:
        files.close()
        raise
    return files
