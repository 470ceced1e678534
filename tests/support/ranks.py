"""What the ranks of these tests do, and what they report of it. Runs in processes of its own."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

import outpace
from outpace import vector
from outpace.engines.arena import log
from outpace.protocol.ledger import Ledger
from outpace.strategies import Strategy
from outpace.strategies import strategy as strategy_by_name
from outpace.strategies.eager import Eager
from outpace.strategies.nonblocking import NonBlocking

TIMEOUT_S = 60.0  # a hang becomes an error that names the ranks
ROOM = 4_000  # steps that weights count: a slow machine needs long until a fault has happened
AFTERWARDS = 20  # steps of everybody when all faults are over
SHORT_CHUNK = 2_048  # elements: what has to be several chunks long is several short ones


@dataclass
class Report:
    """One rank's view of a run."""

    rank: int
    digests: dict[int, str] = field(default_factory=dict)  # round -> weights and optimizer state after it
    rounds: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)  # round -> its contributions
    final: str = ""
    stats: outpace.observe.figures.Stats | None = None
    counts: list[list[float]] = field(default_factory=list)  # how often each (rank, step) was applied
    rounds_meanwhile: int = 0  # rounds this rank saw while another was stopped
    extra: object = None
    reloads: int = 0  # ledgers read from a snapshot because the log was cut


def my_rank() -> int:
    return int(os.environ["RANK"])


def world() -> int:
    return int(os.environ["WORLD_SIZE"])


def digest(optimizer: outpace.DistributedOptimizer) -> str:
    """Of the bytes of all weights and of the whole optimizer state."""
    found = hashlib.sha256()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            found.update(bytes_of(parameter))
            for key, value in sorted(optimizer.state.get(parameter, {}).items()):
                found.update(key.encode())
                found.update(bytes_of(value) if isinstance(value, torch.Tensor) else repr(value).encode())
    return found.hexdigest()


def bytes_of(tensor: torch.Tensor) -> bytes:
    """Also of types that numpy does not have."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes()


def recorder(report: Report, made: list[outpace.DistributedOptimizer]):
    """Notes every round this replica applies, and what it looks like afterwards."""

    def on_round(record) -> None:
        report.rounds[record.number] = [] if record.void else [c[:3] for c in record.contributions]
        report.digests[record.number] = digest(made[0])

    return on_round


def small_model(rank: int) -> torch.nn.Module:
    torch.manual_seed(rank)  # different on every rank: rank 0's weights must win
    return torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def inner_optimizer(name: str, model: torch.nn.Module) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if name == "nesterov":
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, foreach=True)
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def train(strategy: str, steps: int, optimizer: str = "sgd", delay_s: float = 0.002, seed: int = 0) -> Report:
    """An ordinary loop with a cosine schedule and random delays."""
    rank = my_rank()
    report, made = Report(rank), []
    model = small_model(rank)
    inner = inner_optimizer(optimizer, model)
    opt = outpace.DistributedOptimizer(
        inner, strategy=strategy, model=model, timeout_s=TIMEOUT_S, on_round=recorder(report, made)
    )
    made.append(opt)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    delays = random.Random(f"{seed}/{rank}")
    for _ in range(steps):
        x = torch.randn(8, 12)
        opt.zero_grad()
        torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
        time.sleep(delays.random() * delay_s)
        opt.step()
        scheduler.step()
    opt.synchronize()
    report.final = digest(opt)
    report.stats = opt.stats
    opt.finish()
    return report


def at_full_weight(choice: str) -> Strategy:
    """The strategy without repair: where contributions are counted by the weights they move, each must weigh one."""
    chosen = strategy_by_name(choice)
    return replace(chosen, repair="none") if isinstance(chosen, (Eager, NonBlocking)) else chosen


class Counter:
    """A model whose gradient for step s of rank r is one at [r, s]: weights count how often each was applied."""

    def __init__(self, steps: int, strategy: str, report: Report, padding: int = 0, **options) -> None:
        self.weight = torch.nn.Parameter(torch.zeros(world(), steps))
        self.padding = torch.nn.Parameter(torch.zeros(padding))  # makes the vector several chunks long
        made: list[outpace.DistributedOptimizer] = []
        inner = torch.optim.SGD([self.weight, self.padding], lr=1.0)
        options = {"timeout_s": TIMEOUT_S, **options}
        chosen = at_full_weight(strategy)
        self.opt = outpace.DistributedOptimizer(inner, strategy=chosen, on_round=recorder(report, made), **options)
        made.append(self.opt)

    def step(self, step: int) -> None:
        self.padding.grad = torch.full_like(self.padding, step % 7 + my_rank())  # small: sums stay exact
        self.weight.grad = torch.zeros_like(self.weight)
        self.weight.grad[my_rank(), step] = 1.0
        self.opt.step()

    def counts(self) -> list[list[float]]:
        """Applications of each contribution, for a divisor of the whole world."""
        return (-self.weight.detach() * world()).tolist()


def count(strategy: str, steps: int, delay_s: float = 0.002, padding: int = 0) -> Report:
    """Random delays; reports how often each contribution was applied."""
    report = Report(my_rank())
    counter = Counter(steps, strategy, report, padding)
    delays = random.Random(my_rank())
    for step in range(steps):
        time.sleep(delays.random() * delay_s)
        counter.step(step)
    counter.opt.finish()
    report.final, report.stats, report.counts = digest(counter.opt), counter.opt.stats, counter.counts()
    return report


def lags(engine) -> bool:
    """Whether the rank is further behind than results are kept, or nobody is left to get ahead of it."""
    engine.look()
    ledger = engine.ledger
    return ledger.round > engine.version + ledger.rules.max_staleness + 1 or len(ledger.open.unfinished) == 1


def lost(pid: int) -> bool:
    """Whether that process is stopped, or gone."""
    return _state(pid) in "TZX"


def gone(pid: int) -> bool:
    return _state(pid) in "ZX"


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "X"


def count_with_fault_and_a_short_log(*args) -> Report:
    """As `count_with_fault`, in a log that is cut as often as possible."""
    log.CUT_AT_BYTES = 4096
    reloaded: list[int] = []
    from_state = Ledger.from_state
    Ledger.from_state = lambda *given: (reloaded.append(1), from_state(*given))[1]  # type: ignore[method-assign]
    report = count_with_fault(*args)
    report.reloads = len(reloaded)
    return report


def count_with_fault(
    strategy: str, faults: dict[int, str], directory: str, padding: int = 0, meanwhile: int = 40
) -> Report:
    """As `count`, with a fault at a named point in some ranks.

    Rank 0 watches until every fault has happened, goes on for `meanwhile` rounds, and only then wakes who is stopped.
    Everybody makes a few more steps after that.
    """
    rank = my_rank()
    report = Report(rank)
    if padding:
        vector.CHUNK_ELEMENTS = SHORT_CHUNK
    if rank in faults:
        os.environ["OUTPACE_FAULT"] = faults[rank]
    Path(directory, f"{rank}").write_text(str(os.getpid()))
    counter = Counter(ROOM, strategy, report, padding)
    waker = Waker(faults, directory) if rank == 0 else None
    for step in steps_until(Path(directory, "enough")):
        time.sleep(0.001)
        counter.step(step)
        if waker is not None:
            waker.look(counter.opt.stats.version, meanwhile)
    if waker is not None:
        report.rounds_meanwhile = waker.rounds_meanwhile
        waker.wake()
    counter.opt.finish()
    report.final, report.stats, report.counts = digest(counter.opt), counter.opt.stats, counter.counts()
    return report


def steps_until(enough: Path) -> Iterator[int]:
    """Numbers of steps, until a few after that file is there or there is no room for more."""
    left = AFTERWARDS
    for step in range(ROOM):
        yield step
        left -= enough.exists()
        if not left:
            return


class Waker:
    """Wakes stopped ranks once enough rounds went on without them."""

    def __init__(self, faults: dict[int, str], directory: str) -> None:
        pids = {rank: int(Path(directory, str(rank)).read_text()) for rank in faults}
        self.faulty = list(pids.values())
        self.sleepers = [pid for rank, pid in pids.items() if faults[rank].startswith("stop")]
        self.since: int | None = None
        self.rounds_meanwhile = 0
        self.woken = False
        self.enough = Path(directory, "enough")

    def look(self, version: int, meanwhile: int) -> None:
        if self.woken or not all(map(lost, self.faulty)):
            return
        self.since = version if self.since is None else self.since
        self.rounds_meanwhile = version - self.since
        if self.rounds_meanwhile >= meanwhile:
            self.wake()

    def wake(self) -> None:
        self.woken = True
        self.enough.touch()
        for pid in self.sleepers:
            os.kill(pid, signal.SIGCONT)


def one_slow_rank(strategy: str, steps: int) -> Report:
    """The last rank takes a step only when it lags further than results are kept, until the others are done."""
    report = Report(my_rank())
    counter = Counter(steps, strategy, report)
    is_slow = my_rank() == world() - 1
    mine = range(steps // 10 if is_slow else steps)
    for step in mine:
        time.sleep(0.002)
        while is_slow and not lags(counter.opt._engine):
            time.sleep(0.001)
        counter.step(step)
    counter.opt.finish()
    report.final, report.stats, report.extra = digest(counter.opt), counter.opt.stats, len(mine)
    return report
