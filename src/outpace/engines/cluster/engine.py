"""The cluster engine: a rank among several hosts. As on one machine, with an agent that writes the log and reduces.

Owns what a rank does when its host was given up by the others: it comes back under a new number. What it was about to
contribute to a round is said again. Where weights are averaged there is no round it could still be in: it takes up the
others' weights, and what it was doing is done again on top of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from outpace.engines.arena.arena_engine import ArenaEngine
from outpace.engines.arena.bell import Bell
from outpace.engines.arena.watch import Watch
from outpace.engines.cluster.inbox import Inbox, SentLog
from outpace.engines.cluster.leases import beat_s, lease_s
from outpace.engines.cluster.shared_page import SharedPage
from outpace.engines.cluster.supervisor import AgentSupervisor, LaunchSpec, cluster_of
from outpace.engines.cluster.watch import ClusterWatch
from outpace.engines.replicas import T
from outpace.errors import OutpaceError, StoreLost
from outpace.job.store import MeetingStore
from outpace.protocol.events import (
    Arrive,
    Claim,
    Event,
    Finish,
    Join,
    Publish,
    Read,
    Snapshot,
    Swap,
    Sync,
    Tell,
    Withdraw,
)
from outpace.protocol.outcome import Outcome, OutcomeKind
from outpace.protocol.round import Round

# what a rank says in the name of its current life; the rest may be said by anybody, at any time
_OF_A_LIFE = (Arrive, Sync, Finish, Claim, Snapshot, Publish, Read, Swap, Tell, Withdraw)


class CameBack(OutpaceError):
    """This rank's host was given up and is back: whatever was under way is of another time."""


class ClusterEngine(ArenaEngine):
    """One rank's way to the others on this host and beyond."""

    def __init__(self, *arguments: Any, name: str, store: MeetingStore, **options: Any) -> None:
        self._name, self._store = name, store  # kept: it may be this process that holds the store
        self._is_of_another_time = False  # this rank's host was given up and is back, its weights are as they were
        super().__init__(*arguments, **options)

    async def finish(self) -> None:
        """As on one machine. Then the rank whose process holds the store waits until the others have got the end of
        the log out of it, for at most a lease."""
        await super().finish()
        if not self._store.ends_with_rank_0:
            return
        returned = {
            m.rank: f"{cluster_of(self._name)}/returned/{m.rank}"
            for m in self.ledger.members.by_rank.values()
            if m.alive
        }
        deadline = time.monotonic() + lease_s(self._timeout_s)
        with suppress(StoreLost):  # it has waited long enough
            self._store.set(returned[self.rank], b"1")
            while self.rank == 0 and not self._store.check(list(returned.values())) and time.monotonic() < deadline:
                time.sleep(beat_s(self._timeout_s) / 10)

    def _make_watch(self, timeout_s: float) -> Watch:
        self._timeout_s = timeout_s
        desk, host, files = SharedPage(self._memory), self.rules.host_of(self.rank), self._files
        orders = LaunchSpec(
            name=self._name,
            host=host,
            layout=self._memory.layout.sizes(),
            rules=self.rules.to_dict(),
            chunks=[(str(c.dtype).removeprefix("torch."), c.offset, c.elements) for c in self._vector.chunks()],
            tensors=len(self._vector.entries),
            has_buffers=bool(self._replica.meeting()),
            max_grad_norm=self._max_grad_norm,
            timeout_s=timeout_s,
            fds=files.fds,
        )
        keeper = AgentSupervisor(orders, desk, self._life, f"[rank {self.rank}, host {host}]", self._store.variables)
        log = SentLog(files.log, Inbox(files.inbox, desk), desk)
        rest = (self._snapshots, Bell(self._memory.word), self._life, self._faults, timeout_s)
        return ClusterWatch(keeper, self.rank, self.rules, log, *rest, host=host)

    async def join(self) -> None:
        """A host that was started again is one of the hosts before its ranks are any of the ranks."""
        self._look()
        purpose = "for the agent of this host to take up where the others are"
        await self._until(lambda: not self.ledger.started or self.ledger.host in self.ledger.hosts.living, purpose)
        await super().join()

    def _reduce(self, sealed: Round) -> bool:
        """The agents do that."""
        return False

    def run(self, call: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
        """A rank whose host was away meanwhile takes up the others' weights, and does it again."""
        while True:
            try:
                if self._is_of_another_time:
                    super().run(self._share_beginning)
                    self._is_of_another_time = False
                return super().run(call, *arguments)
            except CameBack:
                continue

    def _append(self, event: Event) -> Outcome:
        """What a rank says in the name of a life that the others have given up is said again in the next one."""
        outcome = super()._append(event)
        while isinstance(event, _OF_A_LIFE) and event.rank == self.rank and not self._is_member():
            was_taken_in = isinstance(event, Arrive) and event.step <= self.ledger.members.by_rank[self.rank].last_step
            self._come_back()
            if was_taken_in:  # and dropped with the host: said again, it would be applied as well
                return Outcome(OutcomeKind.DROPPED, "dropped: its host was given up when it had arrived")
            event = event._replace(incarnation=self.incarnation)
            outcome = super()._append(event)
        return outcome

    def _assist(self) -> bool:
        if not self._is_member() and self.incarnation:
            self._come_back()
            return True
        return super()._assist()

    def _is_member(self) -> bool:
        return self.ledger.members.current(self.rank, self.incarnation) is not None

    def _come_back(self) -> None:
        """Joins under a new number. Rounds that were reduced without this host are passed over by a snapshot."""
        self.incarnation = self.ledger.members.by_rank[self.rank].incarnation + 1
        super()._append(Join(self.rank, self.incarnation))
        if self.rules.publishes is not None:
            self._go_on_from(self.steps)
            self._is_of_another_time, self.has_left = True, False
            raise CameBack
