"""The log of a rank among several hosts: what it says goes through its host's agent, and is said once it came back.

Owns what a rank does when its host was given up by the others: it comes back under a new number. What it was about to
contribute to a round is said again. Where weights are averaged there is no round it could still be in: `drive` takes up
the others' weights, and what was under way is done again on top of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import Any

from outpace.engines.arena.kernel import SLICE_S
from outpace.engines.arena.log import ASLEEP_S, ArenaLog
from outpace.engines.cluster.shared_page import SentLog
from outpace.engines.cluster.supervisor import AgentSupervisor
from outpace.engines.engine import Engine, T, run
from outpace.engines.log import Wait
from outpace.errors import OutpaceError, TimedOut
from outpace.protocol import events as ev
from outpace.protocol.events import Arrive, Event, Join, Outcome, OutcomeKind

# what a rank says in the name of its current life; the rest may be said by anybody, at any time
_OF_WEIGHTS = (ev.Publish, ev.Read, ev.Swap, ev.Tell, ev.Withdraw)
_OF_A_LIFE = (Arrive, ev.Sync, ev.Finish, ev.Claim, ev.Snapshot, *_OF_WEIGHTS)


class CameBack(OutpaceError):
    """This rank's host was given up and is back: whatever was under way is of another time."""


class ClusterLog(ArenaLog):
    file: SentLog

    def __init__(self, supervisor: AgentSupervisor, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._supervisor = supervisor
        self.is_of_another_time = False  #: this rank's host was given up and is back, its weights are as they were

    def append(self, event: Event) -> Outcome:
        """What a rank says in the name of a life that the others have given up is said again in the next one."""
        outcome = super().append(event)
        while isinstance(event, _OF_A_LIFE) and event.rank == self.rank and not self._is_member():
            was_taken_in = isinstance(event, Arrive) and event.step <= self.ledger.members.by_rank[self.rank].last_step
            self._come_back()
            if was_taken_in:  # and dropped with the host: said again, it would be applied as well
                return Outcome(OutcomeKind.DROPPED, "dropped: its host was given up when it had arrived")
            event = event._replace(incarnation=self.incarnation)
            outcome = super().append(event)
        return outcome

    def say(self, event: Event) -> None:
        """Of what is said in a life that the others have given up, nothing comes of it."""
        self.file.append(event._replace(time_ns=self.file.now_ns()))

    def report_deaths(self) -> bool:
        """The agent does."""
        return False

    async def rest(self, wait: Wait, at_most_s: float | None = None) -> None:
        if self.incarnation and not self._is_member():
            self._come_back()
        else:
            await super().rest(wait, at_most_s)

    def check(self) -> None:
        """Raises if no wait can come to a good end, and sees to it that there is an agent."""
        super().check()
        self._supervisor.look()

    def _is_member(self) -> bool:
        return self.ledger.members.current(self.rank, self.incarnation) is not None

    def _come_back(self) -> None:
        """Joins under a new number. Rounds that were reduced without this host are passed over by a snapshot."""
        self.incarnation = self.ledger.members.by_rank[self.rank].incarnation + 1
        super().append(Join(self.rank, self.incarnation))
        if self.ledger.rules.publishes is not None:
            self.is_of_another_time = True
            raise CameBack

    def _until_folded(self) -> None:
        began = looked = time.monotonic()
        asleep_s = 0.0
        self.look()
        while not self.file.is_back(self.ledger.hosts, self.ledger.host):
            now = time.monotonic()
            if now - looked > ASLEEP_S:  # it is this rank that stood still, and not the agent
                asleep_s += now - looked
            looked = now
            if now - began - asleep_s > self._timeout_s:
                raise TimedOut(
                    f"[rank {self.rank} - round {self.ledger.round}] waited {self._timeout_s:.0f} s for the agent of "
                    f"host {self.ledger.host} to commit to the store. See whether it is stopped, or raise timeout_s"
                )
            self._supervisor.look()
            self._bell.wait(self._shown, SLICE_S)
            self.look()
        self.waited_s += time.monotonic() - began


class Drive:
    """Runs calls of an engine between hosts. One whose host was away meanwhile takes up the others' weights first."""

    def __init__(self, engine: Engine, log: ClusterLog) -> None:
        self._engine, self._log = engine, log

    def __call__(self, call: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
        while True:
            try:
                if self._log.is_of_another_time:
                    run(self._begin_again)
                return run(call, *arguments)
            except CameBack:
                continue

    async def _begin_again(self) -> None:
        engine = self._engine
        engine.go_on_from(engine.steps)
        engine.has_left = False
        await engine.replay.share_beginning()
        self._log.is_of_another_time = False
