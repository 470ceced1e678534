"""DistributedOptimizer: the face of outpace in a training script. Owns the user's contract; delegates the rest."""

from __future__ import annotations

import copy
import logging
import os
import time
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from functools import wraps
from typing import Any, TypeVar

import torch
from torch._compile import _disable_dynamo
from torch.optim import Optimizer

from outpace import lifetimes
from outpace.engines.engine import Opened
from outpace.engines.virtual.threads import simulated_rank
from outpace.errors import Finished, InvalidRules, OutpaceError, ParametersChanged
from outpace.interface import Ticket, Work
from outpace.job.environment import LOG_DIR, STRATEGY, place_of, refuse_late_group, tell_launcher, whereami
from outpace.lifetimes import Position
from outpace.microbatches import MicrobatchRound, rounds_of
from outpace.observe.figures import Stats, stats_of
from outpace.observe.record import RunTrace
from outpace.observe.recorder import LogDir
from outpace.replica.buffers import ModelBuffers
from outpace.replica.inner_step import refuse_needed_closure
from outpace.replica.ownership import ForeignWrites, refuse_ddp, refuse_wrong_model
from outpace.replica.replica import RoundHook
from outpace.strategies import Strategy
from outpace.strategies import strategy as by_name
from outpace.strategies.base import After

log = logging.getLogger("outpace")

DEFAULT_TIMEOUT_S = 1800.0  #: as torch.distributed's
_Method = TypeVar("_Method", bound=Callable[..., Any])
_STATE_HOOKS = ("state_dict_pre", "state_dict_post", "load_state_dict_pre", "load_state_dict_post")  #: torch's


def _of_inner(name: str) -> Any:
    """A property that reads and writes the inner optimizer's attribute."""
    return property(lambda self: getattr(self.inner, name), lambda self, value: setattr(self.inner, name, value))


def _on_wrapped(method: _Method) -> _Method:
    """Lightning wraps an optimizer in objects that imitate its class: their calls go to the wrapped optimizer."""

    @wraps(method)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        return method(vars(self).get("_optimizer", self), *arguments, **options)

    return call  # type: ignore[return-value]


class DistributedOptimizer(Optimizer):
    """Wraps any torch optimizer, and is one: `step()` averages with the other ranks without waiting for the slowest.

    All ranks start from rank 0's weights, buffers and optimizer state. Blocks until every rank has joined.

        optimizer = outpace.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1),
                                                 model=model)

    optimizer: the optimizer to wrap; use only the wrapper afterwards.
    strategy: a name, with options ("eager:quorum=3,late=carry"), or an object (`outpace.Eager(quorum="majority")`).
        "auto", the default, waits for a rank only while that pays.
    model: names the parameters, and shares buffers (BatchNorm) at the start and at `synchronize()`.
    buffers: how to combine buffers at `synchronize()` where the default rule does not fit: {"*.queue": "own"}.
    engine: "local" (all ranks on this machine), "cluster" (several machines), or "auto" to follow torchrun.
    max_grad_norm: clips the averaged gradient, the same on all ranks.
    timeout_s: the longest any call waits for other ranks before it raises `TimedOut`, naming them.
    match_step_length: scale Adam-like steps and weight decay by the work in them, so that DDP's learning rate still
        fits; False for the papers' behaviour.
    on_round: called with the round's record each time this replica has applied a round.
    log_dir: where to record this rank's steps and rounds, for `outpace trace` and `outpace watch`, and for TensorBoard
        if it is installed (by rank 0). Simulated ranks record nothing.

    >>> weight = torch.nn.Parameter(torch.ones(3))
    >>> with DistributedOptimizer(torch.optim.SGD([weight], lr=0.5), strategy="eager-solo") as optimizer:
    ...     weight.sum().backward()
    ...     _ = optimizer.step()
    >>> weight.detach()
    tensor([0.5000, 0.5000, 0.5000])
    """

    records_itself = True  #: `outpace.record` is for other optimizers

    def __init__(
        self,
        optimizer: Optimizer,
        strategy: str | Strategy = "auto",
        model: torch.nn.Module | None = None,
        engine: str = "auto",
        *,
        buffers: Mapping[str, str] | None = None,
        max_grad_norm: float | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        match_step_length: bool = True,
        on_round: RoundHook | None = None,
        log_dir: LogDir | None = None,
    ) -> None:
        if not isinstance(optimizer, Optimizer) or isinstance(optimizer, DistributedOptimizer):
            what = f"wrap a torch.optim.Optimizer, not a {type(optimizer).__name__}"
            raise OutpaceError(f"{what}. Framework integrations wrap it for you: give them the plain optimizer")
        if max_grad_norm is not None and not max_grad_norm > 0:
            raise InvalidRules(f"max_grad_norm={max_grad_norm!r} must be greater than 0, or None")
        refuse_needed_closure(optimizer)
        refuse_wrong_model(model, (p for group in optimizer.param_groups for p in group["params"]))
        self.inner = optimizer
        super().__setstate__({})  # hooks and profiling of the base class, without a second set of parameters
        for hooks in (f"_optimizer_{kind}_hooks" for kind in _STATE_HOOKS):
            setattr(self, hooks, getattr(optimizer, hooks))  # state belongs to the inner optimizer, and so do its hooks
        strategy = os.environ.get(STRATEGY) or strategy
        self._strategy, self._spec = by_name(strategy), str(strategy)
        self.simulated = simulated_rank()  #: whose optimizer this is, where time is simulated
        is_simulated = self.simulated is not None
        place = place_of(os.environ, None) if is_simulated else whereami()
        self._log_dir = None if is_simulated else os.environ.get(LOG_DIR) or log_dir
        self._trace = RunTrace(self._log_dir, on_round, place.rank)
        self._replica = self._strategy.replica(optimizer, model, self._trace.on_round)
        self._replica.max_grad_norm = max_grad_norm
        self._replica.step_length.is_matched = match_step_length
        self._replica.model_buffers = ModelBuffers(model, buffers)
        self._finished = False
        self._last = Ticket(0, 0, False, "nothing contributed yet")
        self._steps = 0
        self._round: MicrobatchRound | None = None
        opened = lifetimes.open_engine(engine, place, self._replica, self._strategy, max_grad_norm, timeout_s)
        self._engine, self._drive, self._compute = opened
        self._opened = opened
        _instances.append(weakref.ref(self))
        self._is_first_step = True
        self._trace.start(self._engine, self._replica.parameters, strategy)
        self._position = Position(self._strategy, opened, self._replica)
        self._has_begun = False  # whether it was used since it took over the common starting point
        self._replica.note_writes()
        self._foreign_writes = ForeignWrites(
            self._engine.rank,
            self._replica,
            self._strategy.sends_gradients,
            lambda: self._drive(self._engine.replay.begin_with_own),
        )

    # -- being an optimizer ----------------------------------------------------------------------------------------

    param_groups = _of_inner("param_groups")  #: what schedulers read and write
    state = _of_inner("state")
    defaults = _of_inner("defaults")

    @_disable_dynamo  # reads and writes memory shared with other ranks, so a compiled train step must not trace it
    def step(
        self,
        closure: Callable[[], Any] | None = None,
        *,
        samples: float | None = None,
        loss: float | torch.Tensor | None = None,
    ) -> Any:
        """Contributes the gradients and applies every round that is decided. Returns what `closure` returns.

        How long it waits is up to the strategy: usually for the quorum if this contribution is on time, and not at all
        if it is late. `closure`, if given, is called once, first, to compute the gradients. `samples` is the size of
        the mini-batch, for strategies that normalise by it. `loss` is its loss, for the trace and for strategies that
        follow the best rank; it defaults to what the closure returns.
        """
        self._check_usable("step")
        returned = None
        if closure is not None:
            with torch.enable_grad():
                returned = closure()
        ready = time.monotonic_ns()
        if self._is_first_step and simulated_rank() is None:  # costs too much for every step
            refuse_late_group(self._engine.world)
            refuse_ddp(None, self._replica.parameters)
            self._replica.check_not_converted()
        self._is_first_step = False
        is_recording = self._log_dir is not None
        is_loss_wanted = self._strategy.follows_loss or is_recording  # reading it makes the host wait for a GPU
        loss = loss if loss is not None or not _is_loss(returned) else returned
        if self._compute is not None and (self._round is None or not self._round.is_over):
            self._compute(1 if self._round is None else self._round.planned)
        draws, taken = self._engine.draws, None if self._round is None else self._round.newly_taken()
        drawn = draws.step(taken) if draws.is_drawing else None
        if self._round is None and samples is None:
            samples = drawn
        work = self._work(samples)._replace(loss=_plain(loss) if is_loss_wanted else None)
        self._last = self._drive(self._strategy.step, self._engine, work)
        if self._round is not None and not self._last.taken and not self._round.is_over:
            self._round.take_back()
        self._engine.begin_computing()
        self._replica.note_writes()
        self._steps += 1
        if is_recording:
            counted = work.samples if self._round is None or samples is not None else self._round.samples
            self._trace.step(ready, self._last, counted, work.loss)
        if not self._last.waits:
            log.debug("[rank %d - round %d] %s", self._engine.rank, self._last.round, self._last.reason)
        self.inner._opt_called = True  # type: ignore[attr-defined]  # schedulers of the inner optimizer check it
        return returned

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As in torch. Leaves contributions alone that are already with the other ranks."""
        self.inner.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: the ranks have agreed on one set of parameters."""
        raise ParametersChanged(
            "parameters cannot be added to a DistributedOptimizer: the ranks have agreed on its shape. Add them to "
            "the inner optimizer first, then wrap it"
        )

    def state_dict(self) -> dict[str, Any]:
        """The inner optimizer's state and, under "outpace", this rank's position. Local; never waits.

        For a checkpoint from which all ranks resume exactly, call `synchronize()` first, or use
        `outpace.TrainingState`.
        """
        return {**self.inner.state_dict(), "outpace": self._position.state(self._steps)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resumes from a checkpoint. All ranks must call it; waits for them, and ends with equal replicas.

        Load the model's weights first. If the ranks' checkpoints have different versions, all resume from the furthest.
        All ranks may load one rank's checkpoint, or one of the plain inner optimizer. A restarted rank that has not
        stepped yet keeps the replica it took over from the others, which is newer than any checkpoint. Loading a rank's
        own `state_dict()` back before its first step changes nothing and does not wait.
        """
        self._check_usable("load_state_dict")
        began = time.monotonic_ns()
        position = state_dict.get("outpace")
        is_loaded = self._steps == 0 and self._position.is_of_this_moment(position)
        if self._engine.came_late and self._steps == 0 and not is_loaded:
            self._run(self._engine.replay.take_up)
            return
        self.inner.load_state_dict({k: v for k, v in state_dict.items() if k != "outpace"})
        if is_loaded:
            return
        if position is not None:
            self._replica.hyper = position["hyper"].encode()
            self._steps = position["steps"]
            self._engine.resume_steps(position["steps"])
        self._run(self._engine.synchronize, 0 if position is None else position["version"])
        if position is not None:
            self._position.restore(position)
        self._replica.note_writes()
        self._has_begun = False
        self._trace.synchronized(began)

    # -- beyond an optimizer ---------------------------------------------------------------------------------------

    @_on_wrapped
    def rounds(self, loader: Iterable[Any], microbatches: int = 1) -> Iterator[MicrobatchRound]:
        """Cuts a loader into rounds of this many micro-batches, with one step each.

            for round in optimizer.rounds(loader, microbatches=8):
                for x, y in round:
                    loss_fn(model(x), y).backward()
                optimizer.step()

        The contribution is the mean of the micro-batches' gradients; samples are counted. Gradients are cleared before
        each round. The last round may be shorter. A strategy may end a round early (`nonblocking`, `dropcompute`,
        `m-sync`, `rennala`): the remaining micro-batches go to the next round, or are dropped, as the strategy says.
        """
        try:
            for batches in rounds_of(loader, microbatches, self._boundary, self._strategy.drops_rest):
                self._round = batches
                self.zero_grad()
                self._engine.begin_computing()
                yield batches
        finally:
            self._round = None

    @_on_wrapped
    def until(self, rounds: int) -> Iterator[int]:
        """Runs until all ranks together have sealed this many rounds, and yields this rank's own steps from 0.

            for step in optimizer.until(rounds=10_000):
                loss_fn(model(batch())).backward()
                optimizer.step()

        All ranks end at the same round; a slow rank has made fewer steps by then. For loops that count steps. Where
        weights are averaged, the iterations of the furthest rank count as rounds. A learning-rate schedule must follow
        the rounds, too: see `outpace.RoundScheduler`.
        """
        if not isinstance(rounds, int) or isinstance(rounds, bool) or rounds < 1:
            raise InvalidRules(f"until(rounds={rounds!r}): rounds must be a whole number, at least 1")
        step = 0
        while self._progress() < rounds:
            yield step
            step += 1

    def _progress(self) -> int:
        self._check_usable("until")
        self._engine.look()
        ledger = self._engine.ledger
        if self._engine.rules.publishes is None:
            return ledger.round
        return 1 + max(shelf.iteration for shelf in ledger.published.shelves.values())

    @_on_wrapped
    def synchronize(self) -> None:
        """Brings all ranks to one version with equal weights, optimizer state and buffers, for evaluation or a
        checkpoint. Waits for every rank that has not finished, and applies all carried contributions."""
        self._check_usable("synchronize")
        began = time.monotonic_ns()
        self._trace.pausing("synchronize", began)
        self._run(self._strategy.meet, self._engine)
        self._run(self._engine.synchronize)
        self._trace.synchronized(began)

    @_on_wrapped
    def finish(self) -> None:
        """Ends this rank's training: leaves the quorum at once, then applies the others' rounds until all have
        finished. All ranks return with equal weights, even after different numbers of batches."""
        if self._finished:
            return
        self._check_usable("finish")
        began = time.monotonic_ns()
        self._trace.pausing("finish", began)
        self._drive(self._strategy.meet, self._engine)
        self._drive(self._engine.finish)
        self._close()
        tell_launcher("finished")
        self._trace.close(began)

    @property
    @_on_wrapped
    def is_finished(self) -> bool:
        """Whether this rank has left training."""
        return self._finished

    @property
    @_on_wrapped
    def stats(self) -> Stats:
        """What this rank knows of the run. Reads local memory only; communicates with nobody."""
        engine, version, last = self._engine, self._replica.version, self._last.reason
        elsewhere = self._trace.elsewhere()
        return stats_of(engine.ledger, engine.rank, version, self._steps, engine.waited_s, last, elsewhere)

    def __enter__(self) -> DistributedOptimizer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Finishes; after an exception it only closes, so that the exception is not hidden behind a wait."""
        if kind is None:
            self.finish()
        elif not self._finished:
            self._close()
            self._trace.close()

    def _close(self) -> None:
        self._finished = True
        lifetimes.forget(self._engine)
        self._engine.close()
        self._replica.release()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies the plain inner optimizer: there cannot be two ranks with the same number."""
        return copy.copy, (self.inner,)

    def __deepcopy__(self, memo: dict[int, Any]) -> Optimizer:
        return copy.deepcopy(self.inner, memo)

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self._spec}, rank {self._engine.rank} of {self._engine.world})\n{self.inner}"

    # -- details ---------------------------------------------------------------------------------------------------

    def _run(self, call: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        """Runs a call of the engine or the strategy, whose writes to the weights all ranks share."""
        self._drive(call, *arguments)
        self._replica.note_writes()

    def _boundary(self, batches: MicrobatchRound) -> After:
        """Between two micro-batches."""
        if self._compute is not None:
            self._compute(batches.planned)
        self._engine.draws.step(batches.newly_taken())
        after: After = self._drive(self._strategy.microbatch, self._engine, self._work(None))
        self._replica.note_writes()
        if self._engine.rules.cumulative:
            self.zero_grad()  # the others have what was computed so far; the next part is added to it there
        return after

    def _work(self, samples: float | None) -> Work:
        batches, rules = self._round, self._engine.rules
        if samples is not None and not samples > 0:
            raise InvalidRules(f"step(samples={samples!r}): the size of a mini-batch must be greater than 0")
        if rules.of_sums and batches is not None:  # micro-batches are counted
            return Work(1.0 if rules.cumulative else float(batches.done), planned=float(batches.planned))
        if rules.of_sums:
            return Work()
        if samples is None and batches is not None:
            samples = batches.samples
        if samples is None and rules.normalise == "samples":
            raise InvalidRules(
                'normalise="samples" needs the size of each mini-batch: call step(samples=n), use rounds(), or draw '
                "from a pool of outpace.data, which counts for you"
            )
        count = 1.0 if samples is None else float(samples)
        if batches is None or not batches.done:
            return Work(count)
        return Work(count, 1.0 / batches.done, share=batches.done / batches.planned)

    def _check_usable(self, call: str) -> None:
        if self._finished:
            raise Finished(f"{call}() after finish(): this rank has left training. Make a new DistributedOptimizer")
        if self._replica.is_torn:
            raise OutpaceError(
                f"{call}(): this rank was interrupted while applying round {self._replica.version}, so its weights are "
                "half updated. The other ranks go on; make a new DistributedOptimizer to take over their weights"
            )
        if call != "load_state_dict":
            is_beginning, self._has_begun = not self._has_begun, True
            if self._replica.written_by_others():
                self._foreign_writes.handle(is_beginning)


_instances: list[weakref.ref[DistributedOptimizer]] = []  # of this process


def opened_here(optimizer: DistributedOptimizer | None, who: str) -> Opened:
    """The engine of this optimizer, or of the only open one in this process."""
    if optimizer is not None:
        optimizer._check_usable(f"{who}.__iter__")
        return optimizer._opened
    _instances[:] = [reference for reference in _instances if (its := reference()) is not None and not its._finished]
    here = [its for reference in _instances if (its := reference()) is not None and its.simulated is simulated_rank()]
    if not here:
        raise OutpaceError(
            f"{who} was iterated without an open DistributedOptimizer in this process, through which ranks share their "
            "data. Make the optimizer before the first epoch, and call finish() after the last. With DDP keep torch's "
            "DistributedSampler: DDP waits for all ranks in every step, and hangs if they have different numbers of "
            "steps"
        )
    if len(here) > 1:
        raise OutpaceError(f"{len(here)} DistributedOptimizers are open: say which one with {who}(optimizer=...)")
    return here[0]._opened


def _plain(loss: float | torch.Tensor | None) -> float | None:
    return None if loss is None else float(loss.detach() if isinstance(loss, torch.Tensor) else loss)


def _is_loss(returned: Any) -> bool:
    """A closure may return anything, so this tells a loss from the rest."""
    return returned.numel() == 1 if isinstance(returned, torch.Tensor) else isinstance(returned, (int, float))
