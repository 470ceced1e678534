"""What ranks do whose parameters are on a device: the device that punishes every missing wait. Runs in processes."""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

import outpace
from outpace.engines.arena.memory import ArenaMemory
from outpace.interface import Contents, Work
from outpace.replica import pinned
from outpace.replica.staging import StreamStaging
from outpace.strategies.averaging import SharingReplica
from tests.support import family, laggard
from tests.support.ranks import TIMEOUT_S, my_rank, world

CPU, DEVICE = "cpu", "laggard:0"


def use(device: str, slow_us: int = 0) -> None:
    """Late as can be, or if it is slow as soon as it can, each task delayed at random."""
    torch.set_num_threads(1)  # as its kernels have: last bits depend on it
    laggard.load()  # also for the CPU: a process that has computed gradients learns of no more devices
    if device != CPU:
        laggard.load().set_lazy(not slow_us)
        laggard.load().set_slow(slow_us, my_rank() + 1)


def train(strategy: str, steps: int, device: str, slow_us: int = 0) -> tuple[str, str, float, float]:
    """Half of the steps, a synchronisation, the other half: digests of both, and losses before and after."""
    use(device, slow_us)
    rank = my_rank()
    model = family.model_of(rank).to(device)
    opt, jitter = family.wrapped(model, strategy), family.delays(0.002)
    before = held_out(model, device)
    family.in_rounds(opt, model, batches(steps // 2, 1000 + rank, device), jitter)
    opt.synchronize()
    met = digest(model)
    family.in_steps(opt, model, batches(steps // 2, 2000 + rank, device), jitter)
    opt.finish()
    return met, digest(model), before, held_out(model, device)


def simulated(strategies: dict[str, str], ranks: int) -> dict[str, list[Any]]:
    """The family in simulated time, where who is late does not depend on a clock: on the CPU and on the device."""
    found = {}
    for name, strategy in strategies.items():
        runs = [
            outpace.simulate(train_late, ranks, (strategy, device), imbalance="random:k=1,delay_ms=150").results
            for device in (CPU, DEVICE)
        ]
        found[name] = runs
    return found


def train_late(strategy: str, device: str) -> tuple[str, str]:
    """Rounds of micro-batches, a meeting, a checkpoint, and a plain loop."""
    use(device)
    model = family.model_of(my_rank()).to(device)
    opt = family.wrapped(model, strategy)
    for part in opt.rounds(batches(12, 1000 + my_rank(), device), microbatches=2):
        for batch in part:
            loss = family.loss_of(model, batch)
            loss.backward()
        opt.step(loss=loss)
    opt.synchronize()
    met = digest(model)
    opt.load_state_dict(opt.state_dict())
    for batch in batches(5, 2000 + my_rank(), device):
        opt.zero_grad()
        family.loss_of(model, batch).backward()
        opt.step()
    opt.finish()
    return met, digest(model)


def batches(count: int, seed: int, device: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(x.to(device), y.to(device)) for x, y in family.batches(count, seed)]


@torch.no_grad()
def held_out(model: torch.nn.Module, device: str) -> float:
    model.eval()
    loss = sum(float(family.loss_of(model, batch)) for batch in batches(4, -1, device)) / 4
    model.train()
    return loss


def digest(model: torch.nn.Module) -> str:
    return family.digest_of(tensor.cpu() for tensor in model.state_dict().values())


def count(strategy: str, steps: int, slow_us: int) -> tuple[list[float], list[float], int]:
    """A weight for each rank that only its steps change, by 1: how many of each rank are in the mean of all, when all
    meet and at the end. Numbers are whole, so that nothing is rounded away."""
    use(DEVICE, slow_us)
    weight = torch.nn.Parameter(torch.zeros(world(), dtype=torch.float64, device=DEVICE))
    opt = outpace.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), strategy=strategy, timeout_s=TIMEOUT_S)
    met: list[float] = []
    mark = torch.eye(world(), dtype=torch.float64)[my_rank()].to(DEVICE)
    for step in range(steps):
        weight.grad = mark.clone()
        opt.step()
        if step == steps // 2:
            opt.synchronize()
            met = (-weight.detach().cpu() * world()).tolist()
    opt.finish()
    return met, (-weight.detach().cpu() * world()).tolist(), steps


# -- one rank ----------------------------------------------------------------------------------------------------------


def counted(tensors: int, dtypes: tuple[torch.dtype, ...], strategy: str, optimizer: str = "SGD") -> dict[str, float]:
    """What one step moves and waits for, of a model with so many tensors, once all is set up. A world of one reads the
    others' contributions as any other does: it makes no difference how many there are."""
    use(DEVICE)
    weights = [torch.nn.Parameter(torch.ones(8, 3, dtype=d, device=DEVICE)) for d in dtypes for _ in range(tensors)]
    inner = getattr(torch.optim, optimizer)(weights, lr=0.1)
    opt = outpace.DistributedOptimizer(inner, strategy, timeout_s=TIMEOUT_S)
    taken = []
    for _ in range(6):
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        with _counting() as step:
            opt.step()
        taken.append(step)
    opt.finish()
    return {name: max(step[name] for step in taken[3:]) for name in taken[0]}


def met(sizes: tuple[int, ...]) -> list[dict[str, int]]:
    """Copies up and waits of taking over a snapshot, and of what ranks exchange when they meet, buffers included."""
    use(DEVICE)
    found = []
    for tensors in sizes:
        model = torch.nn.ModuleList([torch.nn.BatchNorm1d(3) for _ in range(tensors)]).to(DEVICE)
        replica = SharingReplica(torch.optim.AdamW(model.parameters(), lr=0.1), model)
        for parameter in replica.parameters:
            parameter.grad = torch.ones_like(parameter)
        replica.local_step(Work())
        now = replica.capture()
        kept = Contents(list(replica.staging.host(now.tensors)), now.plain)
        left = list(replica.staging.host(replica.to_exchange()))
        with _counting() as adopting:
            replica.adopt(kept, 1, is_beginning=True)
        with _counting() as meeting:
            replica.exchange([left, left])
        found.append(
            {
                f"{name}, {what}": counters[name]
                for what, counters in (("snapshot", adopting), ("meeting", meeting))
                for name in ("copies_up", "synchronisations")
            }
        )
        replica.release()
    return found


@contextmanager
def _counting() -> Iterator[dict[str, int]]:
    """What the device did within."""
    native = laggard.load()
    before, found = native.counters(), dict[str, int]()
    yield found
    found.update({name: value - before[name] for name, value in native.counters().items()})


def refused(pinning: bool, registering: bool) -> tuple[list[float], list[str]]:
    """Trains where memory cannot be registered, or not even pinned. The weights, and what was said of it."""
    laggard.load().refuse(pinning, registering)
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("outpace").addHandler(handler)
    return [*plain_run(torch.float32, "SGD", {}, DEVICE)], said


def plain_run(dtype: torch.dtype, optimizer: str, options: dict[str, Any], *devices: str) -> list[float]:
    return weights_after(dtype, optimizer, options, *devices, False)


def weights_after(dtype: torch.dtype, optimizer: str, options: dict[str, Any], *where: Any) -> list[float]:
    """Weights on these devices, by turns, after some steps of this rank and the others. At last: channels_last?"""
    *devices, channels_last = where
    for device in devices:
        use(device)
    weights = []
    for index in range(7):
        start = torch.linspace(-1, 1, 24 * (index + 1), dtype=torch.float64).to(dtype).view(1, 2, 3, -1)
        if channels_last:
            start = start.contiguous(memory_format=torch.channels_last)
        weights.append(torch.nn.Parameter(start.to(devices[index % len(devices)])))
    inner = getattr(torch.optim, optimizer)(weights, lr=0.125, **options)
    opt = outpace.DistributedOptimizer(inner, "allreduce", max_grad_norm=1e3, timeout_s=TIMEOUT_S)
    for step in range(6):
        opt.zero_grad()
        for index, weight in enumerate(weights):
            if (index + step + my_rank()) % 5:  # some have no gradient now and then
                (weight * weight * (step + 1 + my_rank())).sum().backward()
        opt.step()
        weights[0].sum().item()  # as one does that logs it: waits for the optimizer's step and for nothing else
    opt.finish()
    return [float(value) for weight in weights for value in weight.detach().cpu().double().reshape(-1)]


def overwritten(strategy: str, device: str, refuses: bool = False) -> str:
    """Trains where a result is overwritten as soon as this rank lets go of it, as another rank may do."""
    if device != CPU:
        laggard.load().refuse(False, refuses)
    use(device)
    with overwriting():
        model = family.model_of(0).to(device)
        opt = family.wrapped(model, strategy)
        for number, batch in enumerate(batches(12, 1000 + my_rank(), device)):
            opt.zero_grad()
            family.loss_of(model, batch).backward()
            opt.step()
            if number % 3 == 1:
                opt._engine.replay.let_go()  # as a rank does that is about to wait
        opt.finish()
    return family.digest_of(p.detach().cpu() for p in model.parameters())


@contextmanager
def overwriting() -> Iterator[None]:
    result, release = ArenaMemory.result, ArenaMemory.release
    held: list[Any] = []

    def remembering(self: ArenaMemory, record: Any) -> Any:
        found = result(self, record)
        held.append(found.gradients)
        return found

    def wiping(self: ArenaMemory) -> None:
        for tensors in held:
            for tensor in tensors:
                tensor.fill_(torch.nan)
        held.clear()
        release(self)

    ArenaMemory.result, ArenaMemory.release = remembering, wiping  # type: ignore[method-assign]
    try:
        yield
    finally:
        ArenaMemory.result, ArenaMemory.release = result, release  # type: ignore[method-assign]


# -- staging by itself -------------------------------------------------------------------------------------------------


def results_in_a_row() -> list[list[float]]:
    """Two results come up one after the other, through one buffer in host memory. What was read of each."""
    use(DEVICE)
    staging, like = StreamStaging(), [torch.zeros(8, device=DEVICE)]
    read = [staging.up([torch.full((8,), value)], like)[0].clone() for value in (1.0, 2.0)]
    return [tensor.tolist() for tensor in read]


def read_while_the_next_comes() -> list[float]:
    """What a step of the optimizer reads of a result, if the host is faster than the device and brings the next one."""
    use(DEVICE)
    staging, like = StreamStaging(), [torch.zeros(8, device=DEVICE)]
    (first,) = staging.up([torch.ones(8)], like)
    kept = first.clone()
    staging.up([torch.full((8,), 2.0)], like)
    staging.until_read()
    return kept.tolist()


def registered() -> dict[str, Any]:
    """Registering: the first time, again, of nothing, of what is registered already, as a whole and in part."""
    use(DEVICE)
    torch.empty(1, pin_memory=True)  # torch begins to use the device
    cudart, device = torch.laggard.cudart(), torch.device(DEVICE)
    room = mmap.mmap(-1, 16 * mmap.PAGESIZE)
    memory = torch.frombuffer(room, dtype=torch.uint8)
    mine, theirs, partly = (memory[start * 4096 : end * 4096] for start, end in ((0, 4), (4, 8), (6, 12)))
    found: dict[str, Any] = {"first": pinned.is_reached(mine, device), "again": pinned.is_reached(mine, device)}
    found["nothing"] = pinned.is_reached(memory[:0], device)
    cudart.cudaHostRegister(theirs.data_ptr(), theirs.nbytes, 0)
    found["by others"] = pinned.is_reached(theirs, device)
    found["in part"] = pinned.is_reached(partly, device)
    for each_of in (mine, theirs, partly):
        pinned.release(each_of)
    found["left"] = [pinned.is_pinned(tensor.data_ptr()) for tensor in (mine, theirs)]
    return found


# -- what users do -----------------------------------------------------------------------------------------------------


def in_other_ways() -> dict[str, list[float]]:
    """AdamW as it is, capturable, with a GradScaler, with a compiled loss and a compiled train step, and under
    `torch.set_default_device`."""
    use(DEVICE)
    found = {"plain": _adamw(), "capturable": _adamw(capturable=True), "scaled": _adamw(is_scaled=True)}
    found |= {f"compiled {what}": _adamw(compiled=what) for what in ("loss", "step")}
    torch.set_default_device(DEVICE)
    try:
        return {**found, "as default": _adamw()}
    finally:
        torch.set_default_device(None)


def _adamw(capturable: bool = False, is_scaled: bool = False, compiled: str = "") -> list[float]:
    weight = torch.nn.Parameter(torch.linspace(-1, 1, 40, device=DEVICE))
    inner = torch.optim.AdamW([weight], lr=0.125, foreach=True, capturable=capturable)
    opt = outpace.DistributedOptimizer(inner, "allreduce", timeout_s=TIMEOUT_S)
    scaler = torch.amp.GradScaler("laggard", enabled=is_scaled, init_scale=2.0**8)
    with _compiling(compiled) as may_compile:
        loss_of = may_compile("loss", lambda factor: (weight * weight * factor).sum())

        def step(factor: torch.Tensor) -> None:
            opt.zero_grad()
            scaler.scale(loss_of(factor)).backward()
            scaler.step(opt)
            scaler.update()

        step = may_compile("step", step)
        for number in range(4):
            step(torch.full((), float(number + 1 + my_rank()), device=DEVICE))
    opt.synchronize()
    opt.load_state_dict(opt.state_dict())
    opt.finish()
    return weight.detach().cpu().tolist()


@contextmanager
def _compiling(what: str) -> Iterator[Callable[[str, Callable[..., Any]], Callable[..., Any]]]:
    """Compiles the function of that name, without making code: there is no code for this device. Raises if in the end
    nothing was compiled."""
    graphs: list[Any] = []
    from torch._dynamo.backends.debugging import aot_eager  # seconds, which no other rank needs

    def backend(graph: Any, example: Any) -> Any:
        graphs.append(graph)
        return aot_eager(graph, example)

    yield lambda name, function: torch.compile(function, backend=backend) if name == what else function
    assert bool(graphs) is bool(what), "nothing was compiled"
