"""The agents of one generation, connected. Owns the c10d backend they talk through, and their common clock.

A backend that has lost one member is of no use to the others, so that every generation has one of its own. Nothing here
can be cancelled: an operation of an old group is left to itself, and must not write where anybody reads.
"""

from __future__ import annotations

import hmac
import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from outpace.engines.cluster.backend import Listener, connect, stop_accepting
from outpace.engines.cluster.sealing import SEAL_BYTES, seal
from outpace.protocol.shared_log import children, parent

_CLOCK_TRIALS = 5
_WELL = 7  # a tag; 1 to 3 are of transfers, 4 and 8 of messages, 5 and 6 of means
_POLL_S, _LONGEST_POLL_S = 0.00005, 0.002
_POLL_SHARE = 1 / 16  #: of what was waited so far: it is noticed so much too late at most
_AS_LONG_AS_IT_TAKES = timedelta(days=365)  #: a host may want nothing of another for long; silence ends no group

T = TypeVar("T")


class Abandoned(Exception):
    """Another generation has begun: whatever was under way in this one is void."""


class Group:
    """The living hosts' agents. Blocks until all of them are here."""

    def __init__(self, store: Store, address: str, hosts: Sequence[int], host: int, timeout_s: float) -> None:
        self.hosts, self.host = tuple(hosts), host
        self._places = {its: place for place, its in enumerate(self.hosts)}
        self._all: Any = None
        self._listeners: set[Listener] = set()
        if len(self.hosts) > 1:
            self._all, self._listeners = connect(store, address, self._places[host], len(self.hosts), timeout_s)
        self._told: Any = None
        self.is_over = False  #: another generation has begun
        self._fetching, self._telling = ThreadPoolExecutor(1, "fetch"), ThreadPoolExecutor(1, "tell")

    def prove(self, key: bytes, place: str, within_s: float) -> None:
        """All prove to each other, over every connection, that they have the job's key. Then nobody else connects.

        Whoever was quicker than an agent to connect in its place cannot answer. Raises `RuntimeError` then.
        """
        if self._all is None:
            return
        asked = secrets.token_bytes(len(self.hosts) * SEAL_BYTES)
        answers = [
            self._answer(key, place, question, self.host, host)
            for host, question in zip(self.hosts, self._swap(asked, within_s), strict=True)
        ]
        for index, (host, answer) in enumerate(zip(self.hosts, self._swap(b"".join(answers), within_s), strict=True)):
            question = asked[index * SEAL_BYTES : (index + 1) * SEAL_BYTES]
            if not hmac.compare_digest(answer, self._answer(key, place, question, host, self.host)):
                raise RuntimeError(f"whoever connected as host {host} does not have the key of this job")
        stop_accepting(self._listeners)

    def _answer(self, key: bytes, place: str, question: bytes, mine: int, theirs: int) -> bytes:
        return seal(key, f"{place}/{mine}/{theirs}", question)[-SEAL_BYTES:]

    def _swap(self, given: bytes, within_s: float) -> list[bytes]:
        got = torch.zeros(len(given), dtype=torch.uint8)
        self.end(self.trade(got, torch.frombuffer(bytearray(given), dtype=torch.uint8)), within_s)
        return [bytes(part.numpy()) for part in torch.split(got, SEAL_BYTES)]

    def add_up(self, tensor: torch.Tensor, largest: bool = False) -> Any:
        """Begins to make a tensor the sum, or the largest, of all hosts' ones, in place. None where it is that."""
        if self._all is None:
            return None
        options: Any = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM
        return self._all.allreduce([tensor], options)

    def end(self, work: Any, within_s: float = math.inf) -> None:
        """Waits for what was begun, unless the group is over."""
        began = time.monotonic()
        while work is not None and not work.is_completed():
            if self.is_over:
                raise Abandoned
            waited_s = time.monotonic() - began
            if waited_s > within_s:
                raise RuntimeError(f"hosts {self.hosts} are connected, but not all of them answer")
            time.sleep(min(_LONGEST_POLL_S, max(_POLL_S, _POLL_SHARE * waited_s)))
        if work is not None:
            work.wait()

    def exchange(self, numbers: Sequence[int]) -> dict[int, list[int]]:
        mine = torch.tensor(numbers, dtype=torch.int64)
        found = [mine] if self._all is None else [torch.zeros_like(mine) for _ in self.hosts]
        if self._all is not None:
            self.end(self._all.allgather([found], [mine]))
        return {host: numbers.tolist() for host, numbers in zip(self.hosts, found, strict=True)}

    def trade(
        self, got: torch.Tensor, given: torch.Tensor, got_sizes: Sequence[int] = (), given_sizes: Sequence[int] = ()
    ) -> Any:
        """Begins to give each host, in order, its part of one tensor, and to fill another with what each has for this
        one. Parts are equal where there are no sizes. None where it is done."""
        if self._all is None:
            got.copy_(given)
            return None
        return self._all.alltoall_base(got, given, list(got_sizes), list(given_sizes))

    def send(self, tensor: torch.Tensor, host: int, tag: int) -> None:
        """Blocks until the host takes it."""
        self.await_sent(self.begin_to_send(tensor, host, tag))

    def begin_to_send(self, tensor: torch.Tensor, host: int, tag: int) -> Any:
        """Who called this keeps tensor and result until it is sent."""
        return self._all.send([tensor], self._places[host], tag)

    def await_sent(self, work: Any) -> None:
        work.wait(_AS_LONG_AS_IT_TAKES)

    def receive(self, tensor: torch.Tensor, host: int, tag: int) -> None:
        self._all.recv([tensor], self._places[host], tag).wait(_AS_LONG_AS_IT_TAKES)

    def exchange_parts(self, got: Mapping[int, torch.Tensor], given: Mapping[int, torch.Tensor], tag: int) -> None:
        """Gives some hosts a tensor each, and fills others with what hosts have for this one. Blocks until all of it
        is there. Nothing is sent where a tensor is empty."""
        under_way = [self._all.recv([to], self._places[host], tag) for host, to in got.items() if to.numel()]
        under_way += [self._all.send([part], self._places[host], tag) for host, part in given.items() if part.numel()]
        for work in under_way:
            work.wait(_AS_LONG_AS_IT_TAKES)

    def receive_from_any(self, tensor: torch.Tensor, tag: int) -> None:
        """A message may be shorter than the tensor: it says itself how long it is."""
        self._all.recv_anysource([tensor], tag).wait(_AS_LONG_AS_IT_TAKES)

    def is_well_everywhere(self, is_well: bool) -> bool:
        """Whether all is well on every host, as the first host learns it up a tree; on others, on those behind them.
        All call this together.

        Gloo's gather is a message of every host to the first one, its allreduce a ring of 2 (H - 1) in a row.
        """
        place, count = self._places[self.host], len(self.hosts)
        said = {self.hosts[child]: torch.zeros(1, dtype=torch.uint8) for child in children(0, place, count)}
        if said:
            self._run(self._telling, partial(self.exchange_parts, said, {}, _WELL))
        is_well = is_well and all(map(bool, said.values()))
        if place:
            mine = torch.tensor([is_well], dtype=torch.uint8)
            # who calls this again has heard that the last one arrived, or is in another group
            self._told = (self.begin_to_send(mine, self.hosts[parent(0, place, count)], _WELL), mine)
        return is_well

    def fetch(self, how: Callable[[], T]) -> T:
        """Runs something that blocks, one at a time, unless the group is over."""
        return self._run(self._fetching, how)

    def _run(self, thread: ThreadPoolExecutor, how: Callable[[], T]) -> T:
        running: Future[T] = thread.submit(how)
        while True:
            try:
                return running.result(0.02)
            except NotYet:
                if self.is_over:
                    raise Abandoned from None

    def clock_ns(self, offset: int) -> int:
        """What must be added to this host's clock to show the first host's, whose own offset is what it says.

        All call this together. The shortest of a few exchanges is off by no more than it took.
        """
        best = (1 << 62, offset)
        for _ in range(_CLOCK_TRIALS):
            before = time.monotonic_ns()
            times = self.exchange([before + offset])
            after = time.monotonic_ns()
            best = min(best, (after - before, times[self.hosts[0]][0] - (before + after) // 2))
        return offset if self.host == self.hosts[0] else best[1]
