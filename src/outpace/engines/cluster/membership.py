"""Which hosts form the group now, and the group itself. Owns building it anew whenever the log says so.

What an agent has read of the log is ahead of what it has delivered: a record may wait for data from a host that later
records give up. So the group follows what was read.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from outpace.engines.cluster.group import Abandoned, Group
from outpace.protocol.events import Agent, Gone
from outpace.protocol.hosts import Hosts

if TYPE_CHECKING:
    from outpace.engines.cluster.delivery import Transfers

log = logging.getLogger("outpace")

Connect = Callable[[int, list[int]], "tuple[Group, Transfers]"]  #: a generation and its hosts


class Membership:
    def __init__(
        self,
        hosts: Hosts,
        host: int,
        connect: Connect,
        regroup: Callable[[Group | None], None],
        begin_again: Callable[[], None],
        patience_s: float,
    ) -> None:
        self._hosts, self._host = hosts, host
        self._connect, self._begin_again = connect, begin_again
        self._regroup = regroup  # is told of every group there is from now on, and when it is over
        self._patience_s = patience_s
        self._changed = threading.Condition()
        self._group: Group | None = None
        self._transfers: Transfers | None = None
        self._generation = -1  # of the group
        self._troubled = (-1, 0.0)  # generation, and since when it does not work

    @property
    def living(self) -> list[int]:
        """The hosts that the last record read says take part."""
        return sorted(self._hosts.living)

    def serial(self, host: int) -> int:
        """The number of its last agent, 0 if there was none."""
        return self._hosts.serials.get(host, 0)

    def serials(self) -> dict[int, int]:
        return {host: self.serial(host) for host in range(self._hosts.count)}

    def take_in(self, event: Agent | Gone) -> None:
        which = (event.host, event.number)
        if not (self._hosts.enter(*which, 0) if isinstance(event, Agent) else self._hosts.give_up(*which)):
            return  # it changes nothing
        with self._changed:
            if self._group is not None:
                self._group.is_over = True
            self._regroup(None)
            self._changed.notify_all()
        everybody_was_here = len(self._hosts.serials) == self._hosts.count
        if everybody_was_here and self._host in self._hosts.living:
            arguments = (self._hosts.generation, self.living)
            threading.Thread(target=self._build, args=arguments, name="connect", daemon=True).start()

    def within_group(
        self, do: Callable[[Transfers], None], can: Callable[[Group], bool], done: Callable[[], None] | None = None
    ) -> None:
        """Does something in the group there is, again in the next one if it ends meanwhile. Waits until it can be.

        What it did is `done` before the next group begins, or is done again there.
        """
        while True:
            group, transfers = self._now()
            if not can(group):
                if not group.is_over:
                    return  # that host was given up, and nobody waits for it
                continue
            try:
                do(transfers)
            except Abandoned:
                continue
            except RuntimeError as error:
                self.trouble(group, error)
                continue
            with self._changed:
                if not group.is_over:
                    if done is not None:
                        done()
                    return

    def group_of(self, generation: int) -> Group | None:
        """The group of a generation, once it is there. None if a later one has begun."""
        with self._changed:
            while self._generation < generation == self._hosts.generation:
                self._changed.wait(0.1)
            return self._group if self._generation == generation == self._hosts.generation else None

    def trouble(self, group: Group, error: Exception) -> None:
        """An operation of the group has failed. Somebody may be gone: if nobody says so for a lease, begins again."""
        log.debug("the group of hosts %s does not work: %s", group.hosts, error)
        generation = self._hosts.generation
        with self._changed:
            if self._troubled[0] != generation:
                self._troubled = (generation, time.monotonic())
            self._changed.wait_for(lambda: self._hosts.generation != generation, 0.1)
            if time.monotonic() - self._troubled[1] > self._patience_s and self._hosts.generation == generation:
                self._troubled = (generation, time.monotonic())
                self._begin_again()

    def _now(self) -> tuple[Group, Transfers]:
        with self._changed:
            while self._group is None or self._transfers is None or self._group.is_over:
                self._changed.wait(0.1)
            return self._group, self._transfers

    def _build(self, generation: int, living: list[int]) -> None:
        try:
            group, transfers = self._connect(generation, living)
        except (RuntimeError, Abandoned) as error:
            log.debug("hosts %s could not be connected: %s", living, error)
            if self._hosts.generation == generation:
                self._begin_again()
            return
        with self._changed:
            if self._hosts.generation != generation:
                group.is_over = True
                return
            self._group, self._transfers, self._generation = group, transfers, generation
            self._regroup(group)
            self._changed.notify_all()
