"""What communication costs in simulated time: a LogGP model with hosts.

Ranks of one host meet in its memory, so a round costs there what reading the contributions and writing their sum cost.
Between hosts one vector per host travels; small ones by recursive doubling, large ones around a ring, whichever is
quicker (Alexandrov et al., "LogGP", 1995; Thakur et al., "Optimization of Collective Communication", 2005).
With the times of a store it is a cluster of outpace's own: what is said goes through that store, sums go around Gloo's
ring, and published rows are sent to whoever may read them. `agents` has the queues.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, fields
from functools import partial

from outpace.errors import InvalidRules
from outpace.protocol.shared_log import children
from outpace.spec import build

HOST_OVERHEAD_US = 100.0  #: what a round costs in one machine's memory before any byte is moved
HOST_GBYTES_PER_S = 10.0  #: what the cores of a small machine read and write together
SERVER_GBYTES_PER_S = 100.0  #: those of a server with many memory channels
STORE_SET_US = 20.0  #: about what torch's store works for an entry; `make scaling` measures it
SEND_US, RECEIVE_US = 60.0, 90.0  #: about what an agent works for a message to or from another one; measured there, too
ASKED_MESSAGES = 3  #: of the network for one that is not expected yet: Gloo asks before it sends

_BANDWIDTHS = ("gbps", "host_gbytes_per_s")


@dataclass(frozen=True)
class Network:
    """A cluster's links, and what a round costs on them.

    latency_us: L, from one host to another. overhead_us: o, to send or to receive one message.
    gbps: bandwidth between hosts in gigabits a second; LogGP's gap per byte is its inverse.
    ranks_per_host: 0 for all ranks on one host.
    host_overhead_us, host_gbytes_per_s: the same for the memory of one host.
    round_ms: what every round costs on top: for a cost that was measured.
    store_set_us: what the store with the log works for a `compare_set`; 0 for no store: then what is said is known
        after a message.
    send_us, receive_us: what an agent works for a message to another agent, and for one from there.

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
    store_set_us: float = 0.0
    send_us: float = 0.0
    receive_us: float = 0.0

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
        return -(-world // self.ranks_per_host) if self.ranks_per_host else 1

    def host_of(self, rank: int) -> int:
        return rank // self.ranks_per_host if self.ranks_per_host else 0

    def has_store(self, world: int) -> bool:
        return self.hosts(world) > 1 and self._is_ours

    @property
    def message_s(self) -> float:
        """A message without content, from one host to another."""
        return (self.latency_us + 2 * self.overhead_us) / 1e6

    @property
    def hop_s(self) -> float:
        """A short message from one agent to another, which expects it, with what both work for it."""
        return self.message_s + (self.send_us + self.receive_us) / 1e6

    def reach_s(self, hosts: int, messages: int = 1) -> list[float]:
        """For each host, from the first host's having written an entry until that one has it: down a tree, by so many
        messages of the network each time."""
        reach, hop_s = [0.0] * hosts, self.hop_s + (messages - 1) * self.message_s
        for place in range(hosts):
            for turn, child in enumerate(children(0, place, hosts)):  # one after the other
                reach[child] = reach[place] + turn * self.send_us / 1e6 + hop_s
        return reach

    def gather_s(self, hosts: int) -> float:
        """Until the first host has heard of all others: up the tree that entries come down."""
        return max(self.reach_s(hosts, ASKED_MESSAGES))

    def transfer_s(self, payload_bytes: int) -> float:
        return payload_bytes * 8 / (self.gbps * 1e9)

    def mean_s(self, hosts: int, rows: int, payload_bytes: int) -> float:
        """From so many hosts knowing that they average until each has the mean, of at most so many rows a host: their
        sums part by part to whoever adds it up, and its mean from there. All parts are under way at once."""
        inside = self.host_overhead_us / 1e6 + self._memory_s((rows + 3) * payload_bytes)
        if hosts == 1:
            return inside
        messages = ASKED_MESSAGES * self.message_s + (hosts - 2) * 2 * self.overhead_us / 1e6
        return inside + 2 * messages + self.ring_share(hosts) * self.transfer_s(payload_bytes)

    @staticmethod
    def ring_share(hosts: int) -> float:
        """How often a vector goes over each link in a sum around the ring."""
        return 2 * (hosts - 1) / hosts

    def write_ns(self, payload_bytes: int) -> int:
        """From gradients that are ready until they lie in a row: one copy."""
        return _ns(2 * self._memory_s(payload_bytes))

    def arrive_ns(self, world: int, payload_bytes: int) -> int:
        """From gradients that are ready until all hosts know that they are there: one copy, and one message."""
        return _ns(2 * self._memory_s(payload_bytes) + self.notice_s(world))

    def notice_s(self, world: int) -> float:
        """Until what one host says is known to the others, if nothing else is said."""
        if self.hosts(world) == 1:
            return 0.0
        return self._entry_s(self.hosts(world)) if self._is_ours else self.message_s

    def end_s(self, world: int) -> float:
        """From a result that lies on every host until all know it, if nothing else is said: the first host says so when
        all have told it."""
        hosts = self.hosts(world)
        return self.gather_s(hosts) + self._entry_s(hosts) if self.has_store(world) else self.notice_s(world)

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
        members = Counter(map(self.host_of, (rank, *peers)))
        base = self.round_ms / 1e3 + self.host_overhead_us / 1e6
        if self._is_ours:  # rows are sent when they are published, and all lie here by then
            return _ns(base + self._memory_s((len(peers) + 1 + together) * payload_bytes))
        if together:
            inside = self._memory_s((max(members.values()) + 1) * payload_bytes)
            return _ns(base + inside + self._between_s(len(members), payload_bytes))
        far = len(peers) + 1 - members[self.host_of(rank)]
        message = self.message_s + self.transfer_s(payload_bytes)
        return _ns(base + self._memory_s((len(peers) + 1) * payload_bytes) + far * message)

    @property
    def _is_ours(self) -> bool:
        return self.store_set_us > 0

    def _entry_s(self, hosts: int) -> float:
        """From what the first host says until all know it."""
        return 2 * self.message_s + self.store_set_us / 1e6 + max(self.reach_s(hosts))

    def _memory_s(self, moved_bytes: int) -> float:
        return moved_bytes / (self.host_gbytes_per_s * 1e9)

    def _between_s(self, hosts: int, payload_bytes: int) -> float:
        if hosts == 1:
            return 0.0
        message, transfer = self.message_s, self.transfer_s(payload_bytes)
        ring = 2 * (hosts - 1) * message + 2 * transfer * (hosts - 1) / hosts
        if self._is_ours:
            return ring
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
#: Ethernet, used as outpace's own engine for several hosts does.
NETWORKS["cluster"] = partial(NETWORKS["ethernet"], store_set_us=STORE_SET_US, send_us=SEND_US, receive_us=RECEIVE_US)


def network(choice: str | Network) -> Network:
    """The network itself, from its name with options or as an object.

    >>> network("ethernet:gbps=100").gbps
    100
    """
    return choice if isinstance(choice, Network) else build(choice, NETWORKS, "network")


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
