"""The engine: what one rank does to train with others. The same code everywhere; only the log and the memory differ.

`weights` publishes and reads weights, for averaging strategies; `replay` keeps the replica up to date; `draws` takes
this rank's part of the data. The ledger makes every decision. While a rank waits it helps: it seals rounds whose grace
is over, reduces, and writes overdue snapshots.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from outpace.engines.agreement import LoneWait
from outpace.engines.draws import Draws
from outpace.engines.log import Log, Wait
from outpace.engines.memory import Memory
from outpace.engines.replay import Replay
from outpace.engines.siblings import Siblings
from outpace.engines.weights import PublishedWeights
from outpace.errors import OutpaceError, TrainingOver
from outpace.interface import Ticket, Work
from outpace.mixing.schedules import Placement
from outpace.protocol.events import Arrive, Finish, Join, OutcomeKind, Seal, Sync, Tell
from outpace.protocol.ledger import Ledger
from outpace.protocol.rules import Rules

AT_THE_END = 2  #: the place for what ranks exchange in `finish`; synchronisations use 0 and 1 in turn

T = TypeVar("T")


class Engine:
    def __init__(
        self,
        rank: int,
        rules: Rules,
        log: Log,
        memory: Memory,
        replica: Any,
        replay: Callable[[Engine], Any] = Replay,
        close: Callable[[], None] | None = None,
        at_end: Callable[[], None] | None = None,
    ) -> None:
        self.rank, self.world, self.rules = rank, rules.world, rules
        self.placement = Placement(rules.hosts) if len(set(rules.hosts)) > 1 else None  #: which rank is on which host
        self.log, self.memory, self.replica = log, memory, replica
        self.came_late = False  #: it joined a run that had already started, so it is a restarted rank
        self.has_left = False  #: it has announced that it has no more data
        self.is_open = True
        self.steps = 0  #: local steps of the inner optimizer
        self.state: dict[str, Any] = {}  #: what the strategy remembers on this rank
        self.began_s = 0.0  #: when this rank began to compute its next contribution, on its own clock
        self.siblings = Siblings()  #: this rank's other optimizers
        self.number = 0  #: its place among them, in the order they were made; the same on all ranks
        self.weights = PublishedWeights(self)
        self.replay = replay(self)
        self.draws = Draws(self)
        self._contributed = 0  # how often
        self._pieces_at, self._pieces = -1, 0  # a version, and how many pieces were contributed at it
        self._lone_wait = LoneWait(rank)
        self._close, self._at_end = close, at_end
        replica.rules = rules

    @property
    def ledger(self) -> Ledger:
        return self.log.ledger

    @property
    def version(self) -> int:
        return self.replay.version  # type: ignore[no-any-return]

    @property
    def incarnation(self) -> int:
        return self.log.incarnation

    @property
    def has_begun(self) -> bool:
        """Whether this rank has taken a step."""
        return self._contributed > 0 or self.steps > 0

    @property
    def waited_s(self) -> float:
        return self.log.waited_s

    def now_s(self) -> float:
        return self.log.now_s()

    def look(self) -> None:
        self.log.look()

    def run_call(self, drive: Drive, *call: Any) -> Any:
        """Runs a call on this engine, taking care of this rank's other optimizers, if it has any."""
        return self.siblings.run_call(self, drive, *call) if self.siblings.has_several else drive(*call)

    def begin_computing(self) -> None:
        """Marks where a step's computing begins: for strategies that use the clock, and replicas that look ahead."""
        self.began_s = self.log.now_s()
        self.replica.begin_computing()

    # -- beginning and end -----------------------------------------------------------------------------------------

    async def join(self) -> None:
        """Joins, waits until every rank has joined once, and starts from the same weights as the others."""
        self.look()
        purpose = "for the agent of this host to take up where the others are"
        await self.until(lambda: not self.ledger.started or self.ledger.host in self.ledger.hosts.living, purpose)
        self.came_late = self.ledger.started
        known = self.ledger.members.by_rank.get(self.rank)
        self.log.incarnation = 1 if known is None else known.incarnation + 1
        self.log.append(Join(self.rank, self.incarnation))
        if self.ledger.over:
            raise TrainingOver(why_over(self.rank))
        await self.until(lambda: self.ledger.started, "for every rank to join")
        await self.replay.share_beginning()
        self.steps = max(self.steps, self.ledger.published.shelves[self.rank].first)

    async def finish(self) -> None:
        """Leaves the quorum at once; applies until all have finished and nothing is pending."""
        self.leave()
        begun_in = self.ledger.sync.resumed_in

        def others_began_anew() -> bool:  # went back to a checkpoint: this rank ends as they do
            return self.ledger.sync.resumed_in > begun_in

        while others_began_anew() or not self.ledger.ended:
            if others_began_anew():
                begun_in = self.ledger.sync.resumed_in
                await self.replay.resume(self.ledger.sync.version)
            purpose = "in finish() for the other ranks to finish"
            await self.replay.follow(lambda: self.ledger.ended or others_began_anew(), purpose)
        await self.replay.apply_until(self.ledger.round)
        await self.replay.leave_a_snapshot()
        self._exchange(AT_THE_END, [m.rank for m in self.ledger.members.by_rank.values() if m.counts])
        if self._at_end is not None:
            self._at_end()

    def leave(self, for_good: bool = False) -> None:
        """Announces, once and without waiting, that this rank has no more data; with `for_good` also that its process
        ends."""
        if not self.has_left:
            self._leave_for_exchange(AT_THE_END)
            self.draws.give_back()
        if not self.has_left or for_good:
            self.log.append(Finish(self.rank, self.incarnation, for_good))
            self.has_left = True  # set last: if interrupted before, it is announced again, which does no harm

    def close(self) -> None:
        """Releases all resources, without telling the others. Pending work stays in the ledger."""
        if self.is_open and self._close is not None:
            self._close()
        self.is_open = False

    # -- all ranks meet --------------------------------------------------------------------------------------------

    async def synchronize(self, resume_round: int | None = None) -> None:
        """Waits for all ranks and applies what is pending; all end at one version with combined buffers.

        With `resume_round`, rounds continue from that number and all ranks adopt the furthest replica.
        """
        self.look()
        if resume_round is not None:
            self.replica.on_weights_replaced()
        generation = self.ledger.sync.generation
        self._leave_for_exchange(generation % 2)
        resume = 0 if resume_round is None else resume_round + 1
        unfinished = self.siblings.unfinished_besides(self)
        said = (generation, resume, self.steps, self.draws.covered, unfinished)
        self.log.append(Sync(self.rank, self.incarnation, *said))
        purpose = "in synchronize() for every rank that has data left"
        self._lone_wait.begin(self.now_s())

        def all_are_here() -> bool:
            self._lone_wait.look(self.ledger, self.now_s())
            return self.ledger.sync.generation > generation

        if resume_round is None:
            await self.replay.follow(all_are_here, purpose)
        else:  # nothing may be applied on top of a checkpoint
            await self.until(all_are_here, purpose)
        self._lone_wait.all_have_met(self.ledger)
        self.go_on_from(self.ledger.sync.steps)
        self.draws.met()
        if self.ledger.sync.resumed:
            await self.replay.resume(self.ledger.sync.version)
            return
        await self.replay.apply_until(self.ledger.sync.version)
        self._exchange(generation % 2, self.ledger.sync.ranks)

    def go_on_from(self, steps: int) -> None:
        """All ranks continue counting from this step, and nobody reads what was published before."""
        self.steps = max(self.steps, steps, self.ledger.published.shelves[self.rank].first)
        self.weights.forget_unread()
        self._pieces_at = -1  # a checkpoint may bring back a version at which pieces were contributed

    def resume_steps(self, steps: int) -> None:
        self._contributed = max(self._contributed, steps)
        self.steps = max(self.steps, steps)

    def _leave_for_exchange(self, place: int) -> None:
        self.memory.leave(place, self.replica.to_exchange())

    def _exchange(self, place: int, ranks: Iterable[int]) -> None:
        self.replica.exchange([self.memory.left(place, rank) for rank in sorted(ranks)])

    # -- contributing ----------------------------------------------------------------------------------------------

    async def begin(self, work: Work, is_part: bool = False, alone: bool = False) -> Ticket:
        log = self.log
        log.look()
        version = self.replay.version
        work = work._replace(step=self._contributed + 1)
        row = log.ledger.free_row(self.rank)
        if row is None:
            row = await self._free_row()
        earlier = None if alone else log.ledger.open.part_of(self.rank, log.incarnation)
        pieces = 1 + (self._pieces if version == self._pieces_at and not alone else 0)
        samples, planned = work.samples, work.planned
        if earlier is not None:
            await self._deposit(row, work, earlier.row)
            samples, planned = earlier.samples + samples, max(earlier.planned, planned)
        elif pieces == 1:
            await self._deposit(row, work, None)
        ticket = self._arrive(row, version, samples, planned, pieces, is_part)
        if ticket.taken and is_part:
            self._pieces_at, self._pieces = version, pieces
        return ticket

    async def _deposit(self, row: int, work: Work, onto: int | None) -> None:
        memory = self.memory
        earlier = None if onto is None else memory.row(onto)
        described = self.replica.deposit(memory.row(row), work, earlier)
        self.replay.let_go()
        await memory.deposited(row, described)

    def _arrive(
        self, row: int, version: int, samples: float, planned: float = 1.0, pieces: int = 1, is_part: bool = False
    ) -> Ticket:
        log = self.log
        self._contributed = step = self._contributed + 1
        kind, reason, entered = log.append(
            Arrive(
                *(self.rank, log.incarnation, step, version, row, samples, planned, pieces, is_part),
                self.draws.covered,
            )
        )
        if kind is OutcomeKind.IGNORED:
            raise OutpaceError(
                f"[rank {self.rank} - round {version}] this contribution was not accepted ({reason}): this rank was "
                "replaced, or an earlier synchronize() or finish() was interrupted. Make a new DistributedOptimizer"
            )
        is_dropped = kind is OutcomeKind.DROPPED  # for good: it need not be computed again
        is_too_late = kind is OutcomeKind.TOO_LATE
        is_kept = (is_dropped or is_too_late) and bool(self.replica.give_up(step))
        taken = is_kept or not is_too_late
        if entered < 0:
            entered = log.ledger.members.by_rank[self.rank].last_round
        waits = (
            taken and not is_dropped and not is_part and (entered == version or self.rules.counts(entered - version))
        )
        return Ticket(step, entered, waits, reason, taken)

    async def finish_round(self, ticket: Ticket) -> Ticket:
        if ticket.waits:
            await self.until_complete(ticket.round + 1, f"for the quorum of round {ticket.round}")
        await self.catch_up()
        return ticket

    async def catch_up(self) -> None:
        """Applies every round known to be sealed. Waits for one that is still being reduced."""
        ledger = self.log.ledger
        last = ledger.round
        if ledger.complete < last:
            await self.until_complete(last, "for a result to be reduced")
        await self.replay.apply_until(last)

    async def local_step(self, work: Work) -> None:
        await self.memory.step_taken()
        self.replica.local_step(work)
        self.steps += 1
        await self.replay.stepped()

    def tell(self, step: int, index: int, value: float) -> None:
        self.log.append(Tell(self.rank, self.incarnation, step, index, value))

    def pending(self) -> list[dict[str, Any]]:
        """Copies of this rank's contributions that are in no sealed round yet."""
        if not self.is_open:
            return []
        self.look()
        found = []
        for c in self.ledger.pending(self.rank):
            row, meta = self.memory.copy_row(c.row)
            found.append({"version": c.version, "samples": c.samples, "planned": c.planned, "row": row, "meta": meta})
        return found

    async def give_again(self, pending: dict[str, Any]) -> None:
        """Contributes what was pending in a checkpoint. It is late, and is treated like any late contribution."""
        row = await self._free_row()
        self.memory.put_row(row, (pending["row"], pending["meta"]))
        self._arrive(row, pending["version"], pending["samples"], pending["planned"])

    async def _free_row(self) -> int:
        """A row to write into. All are taken only for a moment, after this rank was restarted."""
        row = self.ledger.free_row(self.rank)
        while row is None:
            await self.until(lambda: self.ledger.free_row(self.rank) is not None, "for a row to become free")
            row = self.ledger.free_row(self.rank)
        return row

    # -- waiting ---------------------------------------------------------------------------------------------------

    async def until(self, holds: Callable[[], bool], purpose: str) -> None:
        """Waits until the log makes the condition true, and helps meanwhile.

        First checks without reading the log: the caller has just appended to it or read it.
        """
        if not holds():
            await self._wait(holds, self.log.begin_wait(purpose, None, None))

    async def until_each(self, ranks: Iterable[int], holds: Callable[[int], bool], purpose: str) -> None:
        """Waits until the condition is true for each of these ranks: one wait, with one timeout for all."""
        wait = None
        for rank in ranks:
            if not holds(rank):
                wait = wait or self.log.begin_wait(purpose, None, rank)
                wait.rank = rank
                await self._wait(partial(holds, rank), wait)

    async def until_complete(self, version: int, purpose: str) -> None:
        """Waits until all rounds below this number are complete."""
        log = self.log
        if log.ledger.complete < version:
            await self._wait(lambda: log.ledger.complete >= version, log.begin_wait(purpose, version, None))

    async def _wait(self, holds: Callable[[], bool], wait: Wait) -> None:
        log = self.log
        self.replay.let_go()  # a waiting rank helps to reduce, which needs its only hold
        try:
            while True:
                log.check()
                if not self.memory.has_tensors:  # only time is simulated: there is nothing to help with
                    await log.rest(wait, None)
                else:
                    seen = log.position
                    if not await self._assist() and log.position == seen:
                        elsewhere = None
                        if self.siblings.has_several:
                            await self.siblings.help_others(self)
                            elsewhere = self.siblings.say_away(self)
                        due = (self.replay.overdue_in_s(), elsewhere)
                        await log.rest(wait, min((s for s in due if s is not None), default=None))
                if holds():  # helping reads the log, too, and may have made the condition true
                    return
        finally:
            log.end_wait(wait)

    async def help(self) -> None:
        self.replay.let_go()
        self._reduce()

    async def _assist(self) -> bool:
        """Moves the run along while waiting. True if that changed something worth checking the condition for."""
        if self.ledger.reducing is not None:
            return self._reduce()
        return self._seal() or await self.replay.write_overdue_snapshot()

    def _reduce(self) -> bool:
        sealed = self.ledger.reducing
        event = None if sealed is None else self.memory.reduce(sealed)
        if event is None:
            return False
        self.log.append(event)
        return True

    def _seal(self) -> bool:
        if not self.log.is_seal_due():
            return False
        self.log.append(Seal(self.ledger.sealable))
        return True


def why_over(rank: int) -> str:
    return (
        f"[rank {rank}] this rank was restarted after all ranks had finished, so there is nobody left to train with. "
        "Nothing is lost: what it had contributed is in the others' weights"
    )


def run(call: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
    """Runs a call of an engine or a strategy to its end, where waiting blocks."""
    try:
        call(*arguments).send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise RuntimeError("this engine's calls must not suspend")


Drive = Callable[..., Any]  #: runs a call of an engine or a strategy to its end: `drive(call, *arguments)`


class Opened(NamedTuple):
    """An engine, and how its calls are run."""

    engine: Engine
    drive: Drive = run
    compute: Callable[[int], None] | None = None  #: where time is simulated: lets the time of a micro-batch pass
