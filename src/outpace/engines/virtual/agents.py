"""What is between the hosts of a simulated cluster: an agent on each, one store with the log, a link to each host.

Owns queues, and thereby what is late because others were first: entries at the store, messages at the leader's agent,
rows on a host's link. Agents carry what ranks say and never look into it. A world on one host has no agents.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from outpace.engines.virtual.clock import Action, Clock, Waiters
from outpace.engines.virtual.network import Network
from outpace.protocol.shared_log import FAN_OUT, children, parent

LEADER = 0  #: the first host writes for all


@dataclass(frozen=True)
class Load:
    """What store and links had to do in some time."""

    seconds: float
    rounds: int = 0  #: that were reduced
    events: int = 0  #: that ranks and agents said
    entries: int = 0  #: of the log: events that one agent had together are one
    cuts: int = 0  #: entries that were taken out of the store
    store_busy_s: float = 0.0
    leader_busy_s: float = 0.0  #: of the busiest agent, with messages
    link_busy_s: float = 0.0  #: the busiest link's busiest direction
    commit_s: float = 0.0  #: from saying an event until it is in the log, in the mean

    @property
    def ops(self) -> int:
        return self.entries + self.cuts

    @property
    def ops_per_s(self) -> float:
        return self.ops / self.seconds if self.seconds else 0.0

    @property
    def store_share(self) -> float:
        return self.store_busy_s / self.seconds if self.seconds else 0.0

    @property
    def leader_share(self) -> float:
        return self.leader_busy_s / self.seconds if self.seconds else 0.0

    @property
    def link_share(self) -> float:
        return self.link_busy_s / self.seconds if self.seconds else 0.0


class Store:
    """One server that answers in the order of the questions, with the log in it."""

    def __init__(self, clock: Clock, network: Network) -> None:
        self.entries, self.busy_ns = 0, 0
        self._clock = clock
        self._message_ns = round(network.message_s * 1e9)
        self._set_ns = round(network.store_set_us * 1e3)
        self._free_ns = 0  # when everything it was asked is answered

    def compare_set(self) -> int:
        """Writes an entry. When its agent hears of it."""
        self.entries += 1
        self.busy_ns += self._set_ns
        self._free_ns = max(self._free_ns, self._clock.now_ns + self._message_ns) + self._set_ns
        return self._free_ns + self._message_ns

    def busy_until_now_ns(self) -> int:
        return self.busy_ns - max(0, self._free_ns - self._clock.now_ns)


class Message:
    """What agents have to say, together."""

    def __init__(self, said: list[tuple[int, Action]] | None = None) -> None:
        self.said = said or []  #: when, and what it does
        self.through: list[int] = []  #: hosts that send nothing more before this is in the log

    def add(self, other: Message) -> None:
        self.said += other.said
        self.through += other.through


class Agents:
    """One agent on each host. What comes while it commits an entry waits for its next one.

    The first one writes for all. What others have to say goes up a tree to it, and its entries come down the same tree.
    """

    def __init__(self, clock: Clock, network: Network, world: int, payload_bytes: int) -> None:
        self._clock, self._network = clock, network
        self._hosts = range(network.hosts(world))
        self.store = Store(clock, network)
        self._reach_ns = [round(reach * 1e9) for reach in network.reach_s(len(self._hosts))]
        self._send_ns, self._receive_ns = round(network.send_us * 1e3), round(network.receive_us * 1e3)
        self._busy_ns, self._free_ns = ([0 for _ in self._hosts] for _ in range(2))  # agents: how long, until when
        self._parents = [parent(LEADER, host, len(self._hosts)) for host in self._hosts]
        below = ((host, len(children(LEADER, host, len(self._hosts)))) for host in self._hosts)
        self._passing = [(host, count) for host, count in below if count]  # who passes entries on, to how many
        self._sending = [Message() for _ in self._hosts]  # to its parent, next
        self._is_sending = [False for _ in self._hosts]  # something is under way to its parent, or about to be
        self._inbox = Message()  # to be written
        self._is_committing = False
        self._read_ns = 0  # when all will have read what was committed last
        self._events, self._commit_ns = 0, 0
        self._message_ns = round(network.message_s * 1e9)
        self._payload_bytes = payload_bytes
        self._row_ns = round(network.transfer_s(payload_bytes) * 1e9)
        self._ring_ns = round(network.ring_share(len(self._hosts)) * network.transfer_s(payload_bytes) * 1e9)
        self._sent_ns, self._received_ns = ([0 for _ in self._hosts] for _ in range(2))  # when each link is free
        self._rows_sent, self._rows_received = ([0.0 for _ in self._hosts] for _ in range(2))
        self._mean_there_ns = [0 for _ in self._hosts]
        self._rounds = 0
        self._rows_there_ns = [0] * world  # when the row a rank sent last is with all its readers

    def commit(self, rank: int) -> Waiters:
        """Where to wait until what this rank says now is in the log."""
        waiters: Waiters = []
        self.post(rank, partial(self._clock.wake, waiters, self._reach_ns[self._network.host_of(rank)]))
        return waiters

    def post(self, rank: int, action: Action) -> None:
        """A rank says something. The action is called when it is in the log."""
        self._post(self._network.host_of(rank), action)

    def post_of_all(self, action: Action) -> None:
        """Every agent has the result of a round, tells the first one up the tree, and that says it. The action is
        called when it is in the log."""
        self._rounds += 1
        for host, count in self._passing:
            self._busy_ns[host] += count * self._receive_ns + (self._send_ns if host != LEADER else 0)
        gather_ns = round(self._network.gather_s(len(self._hosts)) * 1e9)
        self._clock.after(gather_ns, partial(self._post, LEADER, action))

    def notice_ns(self) -> int:
        """From now until every host knows what was committed last."""
        return max(0, self._read_ns - self._clock.now_ns)

    def _post(self, host: int, action: Action) -> None:
        said = Message([(self._clock.now_ns, action)])
        if host == LEADER:
            self._write(said)
        else:
            self._send_up(host, said)

    def _send_up(self, host: int, message: Message) -> None:
        """One message to the parent is under way at a time, if there are hosts behind it."""
        self._sending[host].add(message)
        if not self._is_sending[host]:
            self._is_sending[host] = True
            self._clock.after(0, partial(self._forward, host))  # what is said at the same time goes with it

    def _forward(self, host: int) -> None:
        message, self._sending[host] = self._sending[host], Message()
        if len(self._hosts) > FAN_OUT + 1:
            message.through.append(host)
        else:
            self._is_sending[host] = False
        sent_ns = self._work(host, self._send_ns)
        self._clock.at(sent_ns + self._message_ns, partial(self._receive, self._parents[host], message))

    def _receive(self, host: int, message: Message) -> None:
        """An agent takes one message after the other, and writes it or passes it on."""
        pass_on = self._write if host == LEADER else partial(self._send_up, host)
        self._clock.at(self._work(host, self._receive_ns), partial(pass_on, message))

    def _is_back(self, host: int) -> None:
        """What this host sent is in the log, and it knows: it sends what was said meanwhile."""
        if self._sending[host].said:
            self._forward(host)
        else:
            self._is_sending[host] = False

    def _work(self, host: int, work_ns: int) -> int:
        """When a host's agent has done with this, too."""
        self._busy_ns[host] += work_ns
        self._free_ns[host] = max(self._free_ns[host], self._clock.now_ns) + work_ns
        return self._free_ns[host]

    def _until_free_ns(self) -> int:
        """The leader writes when it has passed on what it wrote before: what comes meanwhile goes into one entry."""
        return max(0, self._free_ns[LEADER] - self._clock.now_ns)

    def _write(self, message: Message) -> None:
        self._inbox.add(message)
        if not self._is_committing:
            self._is_committing = True
            self._clock.after(self._until_free_ns(), self._commit)

    def _commit(self) -> None:
        """The next entry has all that lies in the inbox."""
        message, self._inbox = self._inbox, Message()
        self._clock.at(self.store.compare_set(), partial(self._end, message))

    def _end(self, message: Message) -> None:
        for inner, count in self._passing:
            self._work(inner, count * self._send_ns + (self._receive_ns if inner != LEADER else 0))
        self._read_ns = max(self._read_ns, self._clock.now_ns + max(self._reach_ns))
        for through in message.through:
            self._clock.after(self._reach_ns[through], partial(self._is_back, through))
        for said_ns, action in message.said:
            self._events += 1
            self._commit_ns += self._clock.now_ns - said_ns
            action()
        if self._inbox.said:
            self._clock.after(self._until_free_ns(), self._commit)
        else:
            self._is_committing = False

    def send(self, rank: int, readers: Collection[int] = ()) -> None:
        """Sends a rank's row to the hosts of its readers, or to all, one after the other."""
        own = self._network.host_of(rank)
        there_ns = now = self._clock.now_ns
        for host in self._others(own, readers):
            begin_ns = max(self._sent_ns[own], now)
            self._sent_ns[own] = begin_ns + self._row_ns
            self._received_ns[host] = max(self._received_ns[host], begin_ns) + self._row_ns
            self._rows_sent[own] += 1
            self._rows_received[host] += 1
            there_ns = max(there_ns, self._received_ns[host] + self._message_ns)
        self._rows_there_ns[rank] = there_ns

    def average(self, hosts: Sequence[int], rows: int) -> None:
        """These hosts make their mean, each of so many rows at most, when all of them know of it and have nothing else
        on their links."""
        begin_ns = max(self._clock.now_ns + self.notice_ns(), *(self._sent_ns[host] for host in hosts))
        cost_ns = round(self._network.mean_s(len(hosts), rows, self._payload_bytes) * 1e9)
        share = self._network.ring_share(len(hosts))
        for host in hosts:
            self._sent_ns[host] = self._received_ns[host] = self._mean_there_ns[host] = begin_ns + cost_ns
            self._rows_sent[host] += share
            self._rows_received[host] += share

    def mean_there_in_ns(self, rank: int) -> int:
        """From now until the mean that this rank's host makes is there."""
        return max(0, self._mean_there_ns[self._network.host_of(rank)] - self._clock.now_ns)

    def rows_there_in_ns(self, ranks: Iterable[int]) -> int:
        """From now until the rows that these ranks sent last are with all their readers."""
        return max(0, max(map(self._rows_there_ns.__getitem__, ranks), default=0) - self._clock.now_ns)

    def _others(self, own: int, readers: Collection[int]) -> Iterable[int]:
        """Whom a row goes to, beginning behind its own host, so that not all send to the same one first."""
        hosts = len(self._hosts)
        if not readers:
            return ((own + offset) % hosts for offset in range(1, hosts))
        return sorted({self._network.host_of(reader) for reader in readers} - {own}, key=lambda h: (h - own) % hosts)

    def load(self) -> Load:
        rows = max(*self._rows_sent, *self._rows_received)
        return Load(
            seconds=self._clock.now_ns / 1e9,
            rounds=self._rounds,
            events=self._events,
            entries=self.store.entries,
            cuts=self.store.entries,
            store_busy_s=self.store.busy_until_now_ns() / 1e9,
            leader_busy_s=min(self._clock.now_ns, max(self._busy_ns)) / 1e9,
            link_busy_s=min(self._clock.now_ns, round(rows * self._row_ns) + self._rounds * self._ring_ns) / 1e9,
            commit_s=self._commit_ns / 1e9 / max(1, self._events),
        )
