"""The hosts of a run and the group their agents form. Owns which hosts take part; decides nothing about ranks.

Every agent that starts and every host that is given up makes a new generation of the group, whose agents connect anew.
A run on one machine has one host that is always there.
"""

from __future__ import annotations

from collections.abc import Iterable

from outpace.protocol.rules import Rules
from outpace.protocol.state import Part

_BITS = 63  #: of a mask of hosts


class Hosts(Part):
    generation: int
    living: set[int]
    serials: dict[int, int]  #: host -> number of its current agent
    begins: dict[int, int]  #: host that was given up and is back -> the first round whose result it has
    gone: set[int]  #: hosts that were given up and are not back
    committed: dict[int, tuple[int, int]]  #: host -> its last life, and how much of that life's inbox is in the log

    def __init__(self, rules: Rules) -> None:
        self.of = rules.hosts or (0,) * rules.world  #: the host of each rank
        self.count = max(self.of) + 1
        self.ranks: list[list[int]] = [[] for _ in range(self.count)]  #: of each host
        for rank, host in enumerate(self.of):
            self.ranks[host].append(rank)
        self.generation = 0
        self.living = set() if rules.hosts else {0}
        self.serials, self.begins, self.gone, self.committed = {}, {}, set(), {}

    def enter(self, host: int, serial: int, complete: int) -> bool:
        """An agent starts. False if it is known. A host that was given up has missed all rounds so far."""
        if serial <= self.serials.get(host, 0) or not 0 <= host < self.count:
            return False
        self.serials[host] = serial
        self.living.add(host)
        self.generation += 1
        if host in self.gone:
            self.gone.discard(host)
            self.begins[host] = complete
        return True

    def give_up(self, host: int, serial: int) -> bool:
        """A host is given up. False if another of its agents has started meanwhile."""
        if host not in self.living or serial != self.serials.get(host):
            return False
        self.living.discard(host)
        self.gone.add(host)
        self.generation += 1
        return True

    def commit(self, host: int, life: int, end: int) -> bool:
        """A host's inbox is in the log up to `end`. False if that is known, or from an earlier life."""
        if (life, end) <= self.committed.get(host, (0, 0)):
            return False
        self.committed[host] = (life, end)
        return True

    def committed_of(self, host: int, life: int) -> int | None:
        """How much of one life's inbox is in the log. None if a later life has begun: no more of it will get there."""
        last, end = self.committed.get(host, (0, 0))
        return None if life < last else end if life == last else 0


def address(rules: Rules, readers: Iterable[int]) -> int:
    """The hosts of these ranks as a bit mask, for an event. 0 stands for all hosts; so does having no readers.

    >>> address(Rules(4, hosts=(0, 0, 1, 2)), [1, 3])
    5
    """
    return sum(1 << bit for bit in {rules.hosts[rank] % _BITS for rank in readers}) if rules.hosts else 0


def is_addressed(mask: int, host: int) -> bool:
    """Whether the mask includes this host. With more hosts than bits, it includes some extra ones."""
    return not mask or bool(mask >> host % _BITS & 1)
