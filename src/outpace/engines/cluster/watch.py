"""Waiting for a log that an agent writes: what a rank appends is folded once it has come back."""

from __future__ import annotations

import time
from typing import Any

from outpace.engines.arena.bell import SLICE_S
from outpace.engines.arena.watch import ASLEEP_S, Watch
from outpace.engines.cluster.inbox import SentLog
from outpace.engines.cluster.supervisor import AgentSupervisor
from outpace.errors import TimedOut


class ClusterWatch(Watch):
    """A rank's ledger, with an agent between it and the other hosts."""

    log: SentLog

    def __init__(self, keeper: AgentSupervisor, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._keeper = keeper

    def _until_folded(self) -> None:
        began = looked = time.monotonic()
        asleep_s = 0.0
        self.refresh()
        while not self.log.is_back(self.position):
            now = time.monotonic()
            if now - looked > ASLEEP_S:  # it is this rank that stood still, and not the agent
                asleep_s += now - looked
            looked = now
            if now - began - asleep_s > self._timeout_s:
                raise TimedOut(
                    f"[rank {self.rank} - round {self.ledger.round}] waited {self._timeout_s:.0f} s for the agent of "
                    f"host {self.ledger.host} to commit to the store. See whether it is stopped, or raise timeout_s"
                )
            self._keeper.look()
            self._bell.wait(self._shown, SLICE_S)
            self.refresh()
        self.waited_s += time.monotonic() - began

    def _check(self) -> None:
        super()._check()
        self._keeper.look()
