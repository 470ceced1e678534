"""What communication costs in simulated time: a LogGP model with hosts.

Ranks of one host meet in its memory, so a round costs there what reading the contributions and writing their sum cost.
Between hosts one vector per host travels; small ones by recursive doubling, large ones around a ring, whichever is
quicker (Alexandrov et al., "LogGP", 1995; Thakur et al., "Optimization of Collective Communication", 2005).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, fields
from functools import partial

from outpace.errors import InvalidRules
from outpace.spec import build

HOST_OVERHEAD_US = 100.0  #: what a round costs in one machine's memory before any byte is moved
HOST_GBYTES_PER_S = 10.0  #: what the cores of a small machine read and write together
SERVER_GBYTES_PER_S = 100.0  #: those of a server with many memory channels

_BANDWIDTHS = ("gbps", "host_gbytes_per_s")


@dataclass(frozen=True)
class Network:
    """A cluster's links, and what a round costs on them.

    latency_us: L, from one host to another. overhead_us: o, to send or to receive one message.
    gbps: bandwidth between hosts in gigabits a second; LogGP's gap per byte is its inverse.
    ranks_per_host: 0 for all ranks on one host.
    host_overhead_us, host_gbytes_per_s: the same for the memory of one host.
    round_ms: what every round costs on top: for a cost that was measured.

    >>> one_gigabyte_a_second = network("zero:gbps=8,ranks_per_host=1")
    >>> one_gigabyte_a_second.reduce_ns(world=2, ranks=[0, 1], payload_bytes=1_000_000)  # one message of 1 ms
    1000000
    """

    latency_us: float = 0.0
    overhead_us: float = 0.0
    gbps: float = math.inf
    ranks_per_host: int = 0
    host_overhead_us: float = HOST_OVERHEAD_US
    host_gbytes_per_s: float = HOST_GBYTES_PER_S
    round_ms: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            good = isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0
            if not good or (value == math.inf and field.name not in _BANDWIDTHS):
                raise InvalidRules(f"network option {field.name}={value!r} must be a number, 0 or more")
        if not isinstance(self.ranks_per_host, int):
            raise InvalidRules(f"network option ranks_per_host={self.ranks_per_host!r} must be a whole number")
        for name in _BANDWIDTHS:
            if not getattr(self, name):
                raise InvalidRules(f"network option {name} must be greater than 0: nothing would ever arrive")

    def hosts(self, world: int) -> int:
        """How many hosts so many ranks need."""
        return -(-world // self.ranks_per_host) if self.ranks_per_host else 1

    def arrive_ns(self, world: int, payload_bytes: int) -> int:
        """From gradients that are ready until all hosts know that they are there: one copy, and one message."""
        return _ns(2 * self._memory_s(payload_bytes) + self.notice_s(world))

    def notice_s(self, world: int) -> float:
        """Until what one host says is known to the others."""
        return (self.latency_us + 2 * self.overhead_us) / 1e6 if self.hosts(world) > 1 else 0.0

    def reduce_ns(self, world: int, ranks: Iterable[int], payload_bytes: int) -> int:
        """From the seal until the sum of what these ranks gave lies on every host."""
        hosts = self.hosts(world)
        if hosts == 1:
            most = sum(1 for _ in ranks)
        else:
            most = max(Counter(rank // self.ranks_per_host for rank in ranks).values(), default=0)
        inside = self.host_overhead_us / 1e6 + self._memory_s((most + 1) * payload_bytes)
        return _ns(self.round_ms / 1e3 + inside + self._between_s(hosts, payload_bytes))

    def gather_ns(self, rank: int, peers: Collection[int], payload_bytes: int, together: bool) -> int:
        """From these ranks having published until this one has their weighted sum.

        Each one's vector travels by itself, unless all of them make the same sum `together`, as in a reduction.
        """
        members = Counter(map(self._host, (rank, *peers)))
        base = self.round_ms / 1e3 + self.host_overhead_us / 1e6
        if together:
            inside = self._memory_s((max(members.values()) + 1) * payload_bytes)
            return _ns(base + inside + self._between_s(len(members), payload_bytes))
        far = len(peers) + 1 - members[self._host(rank)]
        message = (self.latency_us + 2 * self.overhead_us) / 1e6 + payload_bytes * 8 / (self.gbps * 1e9)
        return _ns(base + self._memory_s((len(peers) + 1) * payload_bytes) + far * message)

    def _host(self, rank: int) -> int:
        return rank // self.ranks_per_host if self.ranks_per_host else 0

    def _memory_s(self, moved_bytes: int) -> float:
        return moved_bytes / (self.host_gbytes_per_s * 1e9)

    def _between_s(self, hosts: int, payload_bytes: int) -> float:
        if hosts == 1:
            return 0.0
        message = (self.latency_us + 2 * self.overhead_us) / 1e6
        transfer = payload_bytes * 8 / (self.gbps * 1e9)
        ring = 2 * (hosts - 1) * message + 2 * transfer * (hosts - 1) / hosts
        doubling = math.ceil(math.log2(hosts)) * (message + transfer)
        return min(ring, doubling)


#: What a name stands for; every option can be given behind it.
NETWORKS: dict[str, Callable[..., Network]] = {
    "host": Network,
    "zero": partial(Network, host_overhead_us=0.0, host_gbytes_per_s=math.inf),
    "fixed": partial(Network, host_overhead_us=0.0, host_gbytes_per_s=math.inf, round_ms=5.0),
    "ethernet": partial(
        Network, latency_us=30.0, overhead_us=5.0, gbps=25.0, ranks_per_host=8, host_gbytes_per_s=SERVER_GBYTES_PER_S
    ),
    "infiniband": partial(
        Network, latency_us=2.0, overhead_us=1.0, gbps=200.0, ranks_per_host=8, host_gbytes_per_s=SERVER_GBYTES_PER_S
    ),
}


def network(choice: str | Network) -> Network:
    """The network itself, from its name with options or as an object.

    >>> network("ethernet:gbps=100").gbps
    100
    """
    return choice if isinstance(choice, Network) else build(choice, NETWORKS, "network")


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
