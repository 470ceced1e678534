"""Copies the log of all hosts into this host's log, record by record, each once its data is here.

Owns the order: what goes with a record is fetched before the record is written, and a rank's next publication is not
written before the hosts that need the last one have fetched it. The agent's own ledger is folded from this host's log,
like every rank's, so that a new agent knows what the last one knew.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from outpace.engines.arena.kernel import Bell
from outpace.engines.arena.log import RECORD_BYTES, ArenaLog, append, decode
from outpace.engines.arena.memory import tag
from outpace.engines.arena.snapshot import SnapshotStore
from outpace.engines.cluster.inbox import Inbox
from outpace.engines.cluster.joining import LogPosition
from outpace.engines.cluster.membership import Membership
from outpace.engines.cluster.shared_page import Progress, SharedPage
from outpace.engines.cluster.store_log import Entry
from outpace.engines.cluster.transfers import SNAPSHOT, Payload, WithData, current_rows, is_for, payload_of
from outpace.errors import OutpaceError
from outpace.protocol.events import Agent, Commit, Event
from outpace.protocol.round import Round


class Delivery:
    def __init__(
        self,
        log_fd: int,
        inbox: Inbox,
        log: ArenaLog,
        page: SharedPage,
        bell: Bell,
        snapshots: SnapshotStore,
        membership: Membership,
        host: int,
        has_buffers: bool,
        reduce: Callable[[Round, int], None],
    ) -> None:
        self._fd, self._inbox, self._log, self._page, self._bell = log_fd, inbox, log, page, bell
        self._snapshots, self._membership = snapshots, membership
        self._host, self._has_buffers = host, has_buffers
        self._reduce = reduce
        self._progress = page.progress
        self.position = os.fstat(log_fd).st_size  #: bytes written
        self._published: dict[int, tuple[int, list[int]]] = {}  # rank -> place of its last publication, who gets it
        self._sealed = 0
        log.look()

    def deliver(self, entry: Entry) -> None:
        """Writes an entry's records. Records that an earlier agent has written already are left alone."""
        start = self._progress.position
        news = self._log.ledger.news
        events = decode(entry.records)
        for index, event in enumerate(events):
            if start + index * RECORD_BYTES >= self.position:
                record = entry.records[index * RECORD_BYTES : (index + 1) * RECORD_BYTES]
                self._deliver(event, record)
        self._progress = self._page.progress = Progress(entry.number + 1, start + len(entry.records), entry.chain)
        self._inbox.cut(self._log.ledger.hosts.committed_of(self._host, self._page.life) or 0)
        is_own = any(isinstance(event, Commit) and event.host == self._host for event in events)
        if is_own or self._log.ledger.news != news:
            self._bell.ring()

    @property
    def entries(self) -> int:
        return self._progress.entries

    def log_position(self) -> LogPosition | None:
        """For a host that begins where this one is. None while an entry is half delivered."""
        progress = self._progress
        if progress.position != self.position:
            return None
        return LogPosition(progress.entries, progress.position, progress.chain, self._log.ledger.to_state())

    def _deliver(self, event: Event, record: bytes) -> None:
        self._bring(event)
        is_back = isinstance(event, Agent) and event.host == self._host
        was_away = is_back and self._host not in self._log.ledger.hosts.living
        if was_away and self._log.ledger.started and self._log.ledger.ended:
            raise OutpaceError(
                f"host {self._host} did not answer for so long that the others went on without it, and they have "
                "finished training meanwhile. Their weights are the result; what this host computed since is lost"
            )
        append(self._fd, record)
        self.position += RECORD_BYTES
        self._log.look()
        ledger = self._log.ledger
        if was_away:
            for payload in current_rows(ledger):
                self._fetch(payload)
        sealed = ledger.reducing
        if sealed is not None and tag(sealed) != self._sealed:
            self._sealed = tag(sealed)
            self._reduce(sealed, ledger.hosts.generation)

    def _bring(self, event: Event) -> None:
        if not isinstance(event, WithData):
            return
        ledger = self._log.ledger
        payload = payload_of(event, ledger, self._has_buffers)
        if payload is None:
            return
        if payload.source != self._host:
            if is_for(self._host, event, ledger):
                self._fetch(payload)
            return
        readers = [host for host in ledger.hosts.living if is_for(host, event, ledger)]
        if payload.what == SNAPSHOT:
            self._until_fetched(self.position, readers)  # its buffer may be written again soon
            return
        self._until_fetched(*self._published.get(event.rank, (0, [])))
        self._published[event.rank] = (self.position, readers)

    def _fetch(self, payload: Payload) -> None:
        if payload.what == SNAPSHOT:
            for buffer in payload.places:
                self._snapshots.forget(buffer)  # whatever comes: what lies there is of another version
        self._membership.within_group(
            lambda transfers: transfers.fetch(payload, self.position), lambda group: payload.source in group.hosts
        )

    def _until_fetched(self, position: int, readers: list[int]) -> None:
        for host in readers:
            self._membership.within_group(
                lambda transfers, host=host: transfers.until_fetched(host, position),  # type: ignore[misc]
                lambda group, host=host: host in group.hosts,  # type: ignore[misc]
            )
