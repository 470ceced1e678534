"""How a replica stays up to date: round by round, or from a snapshot when it lags far, joins late or was restarted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from outpace.interface import Result
from outpace.protocol.events import Claim, Snapshot
from outpace.protocol.ledger_view import NOWHERE, SnapshotPlace
from outpace.protocol.round import Contribution, Round
from outpace.replica.replica import OptimizerReplica

if TYPE_CHECKING:
    from outpace.engines.engine import Engine

OVERDUE_S = 0.1  #: a snapshot due for so long, which nobody writes, is written by whoever waits
SOON_S = 0.001  #: one that somebody waits for is written at once, or after the round that is being reduced
WRITING_S = 2.0  #: so is one that somebody has been writing for so long: that rank may be stopped
REPLAY_AT_MOST = 2  #: a rank further behind a snapshot adopts it: copying costs about as much as applying one round


class Replay:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._replica: OptimizerReplica = engine.replica
        self._log, self._memory = engine.log, engine.memory
        self._overdue: tuple[object, float] | None = None  # the latest snapshot and who writes, and since when
        self._base: SnapshotPlace | None = None  # what this replica was last made from
        self._holds = False  # a result

    @property
    def version(self) -> int:
        """Rounds this replica has applied; where weights are averaged, its local steps."""
        return self._replica.version

    # -- applying --------------------------------------------------------------------------------------------------

    async def apply_until(self, version: int) -> None:
        """Brings the replica to this version, or beyond it if only a later snapshot is left. Those rounds are
        complete."""
        while self._replica.version < version:
            ledger, mine = self._log.ledger, self._replica.version
            ahead = ledger.snapshots.latest
            if self._is_superseded():
                await self._adopt(at_least=mine)
                continue
            record = ledger.completed.get(mine) if ledger.has_result(mine) else None
            if (ahead is not None and mine + REPLAY_AT_MOST < ahead.version <= version) or record is None:
                await self._adopt(at_least=mine + 1)
                continue
            await self._apply(record)
            if self._is_mine_to_write(record):
                if self._is_due():
                    await self._write()
                self._tidy_up(record)

    async def follow(self, holds: Callable[[], bool], purpose: str) -> None:
        """Waits without falling behind: rounds that complete meanwhile are applied."""
        while not holds():
            await self._engine.until(lambda: holds() or self._log.ledger.complete > self._replica.version, purpose)
            if not holds():
                await self.apply_until(self._log.ledger.complete)

    async def _apply(self, record: Round) -> None:
        """Reads the result in place. Its slot cannot be reused while this rank holds it."""
        self.let_go()
        await self._memory.hold(record)
        self._holds = True
        try:
            self._log.look()
            if self._log.ledger.completed.get(record.number) is record:  # else the caller adopts a snapshot
                self._replica.apply(self._own(self._memory.result(record)))
        finally:
            if not self._replica.staging.is_reading:
                self.let_go()

    def let_go(self) -> None:
        """Ends the hold of a result that was applied: a device may read it for longer than `apply` takes. Nobody needs
        its slot before this rank says that it has applied the round, which is with its next contribution."""
        if self._holds:
            if self._replica.staging.is_reading:
                self._replica.staging.until_read()
            self._memory.release()
            self._holds = False

    def _own(self, result: Result) -> Result:
        """With what in it is this rank's own, where a codec wants to know."""
        if self._engine.rules.codec == "none":
            return result
        record = result.round
        mine, refused = self._steps_in(record.contributions), self._steps_in(record.refused)
        return result._replace(mine=() if record.void else mine, refused=refused + mine if record.void else refused)

    def _steps_in(self, contributions: Iterable[Contribution]) -> tuple[int, ...]:
        me = (self._engine.rank, self._log.incarnation)
        own = [c for c in contributions if (c.rank, c.incarnation) == me]
        return tuple(step for c in own for step in range(c.step - c.pieces + 1, c.step + 1))

    async def stepped(self) -> None:
        """A step of this rank's own was taken. Where weights are published, that is the replica's version."""
        engine = self._engine
        if engine.rules.publishes is not None:
            self._replica.version = engine.steps
            if self._is_due() and engine.steps % engine.world == engine.rank:
                await self._write()

    # -- beginning -------------------------------------------------------------------------------------------------

    async def share_beginning(self) -> None:
        """The first living rank writes a snapshot if there is none yet; everybody begins from it."""
        while self._latest() < 0:
            if self._is_first():
                await self._write()
            else:
                await self._engine.until(lambda: self._latest() >= 0 or self._is_first(), "for the first weights")
        await self.take_up()

    async def take_up(self) -> None:
        """Becomes what the others are, whatever was loaded meanwhile."""
        await self._adopt(at_least=0, is_beginning=True)

    async def resume(self, version: int) -> None:
        self._replica.version = version
        await self.share_beginning()

    async def begin_with_own(self) -> None:
        """Weights were loaded since this rank began, and before it contributed: makes them what all begin with.

        If others have done so, or train already, this rank becomes what they are.
        """
        self._log.look()
        ledger = self._log.ledger
        has_trained = self._engine.came_late or ledger.complete > self._replica.version
        is_first = not has_trained and ledger.snapshots.latest == self._base
        if is_first:
            self._replica.begin_anew()
            await self._write(anew=True)
        if not is_first or self._log.ledger.snapshots.latest != self._base:
            await self.take_up()

    def _is_first(self) -> bool:
        """Whether this rank's weights are those that all begin from. Not if another host has a snapshot already."""
        ledger, rank = self._log.ledger, self._engine.rank
        unfinished, source = ledger.open.unfinished, ledger.sync.source
        first = source if source in unfinished else min(unfinished, default=rank)
        return rank == first and all(snapshots.latest is None for snapshots in ledger.snapshots_at)

    # -- snapshots -------------------------------------------------------------------------------------------------

    async def write_overdue_snapshot(self) -> bool:
        """Whoever waits writes it when its writer seems lost: who lags may wait for it, and we for them."""
        if not self._is_due():
            self._overdue = None
            return False
        ledger, now = self._log.ledger, self._log.now_s()
        seen = (self._latest(), dict(ledger.snapshots.claims))
        if self._overdue is None or self._overdue[0] != seen:
            self._overdue = (seen, now)
        if now - self._overdue[1] < self._patience_s():
            return False
        await self._write()
        return True

    def overdue_in_s(self) -> float | None:
        """When to look again whether a snapshot is overdue; None if none is due."""
        return max(self._patience_s(), SOON_S) if self._is_due() else None

    async def leave_a_snapshot(self) -> None:
        """For a rank that wakes up when all others have left."""
        if self.is_needed_here():
            await self._write()

    def _is_superseded(self) -> bool:
        """Whether nothing was applied to a snapshot yet and there is another: that may be of weights loaded since."""
        base, latest, version = self._base, self._log.ledger.snapshots.latest, self._replica.version
        if base is None or latest is None or base == latest:
            return False
        return base.version == version <= latest.version

    def _latest(self) -> int:
        """The version of the latest snapshot, -1 if there is none to adopt."""
        latest = self._log.ledger.snapshots.latest
        return -1 if latest is None or latest.buffer == NOWHERE else latest.version

    def _is_due(self) -> bool:
        """Whether somebody needs a snapshot, or soon will, and this replica is what they need."""
        ledger, latest, mine = self._log.ledger, self._log.ledger.snapshots.latest, self._replica.version
        if latest is None or self._replica.is_torn:
            return False
        if self.is_needed_here() or (ledger.hosts.count > 1 and self._is_wanted_elsewhere()):
            return True
        late = mine - max(1, self._engine.rules.max_staleness - 1)  # who is so far behind soon finds no results
        if latest.version > late:
            return False
        is_regular = ledger.hosts.count > 1 or ledger.rules.publishes is not None
        return is_regular or ledger.results.least <= late or self._log.is_long_since(latest.position)

    def is_needed_here(self) -> bool:
        """Whether a rank of this host waits for a snapshot, and this replica is new enough."""
        ledger = self._log.ledger
        if self._replica.is_torn:
            return False
        return ledger.least_version(ledger.host) <= self._replica.version and ledger.lacks_snapshot(ledger.host)

    def _is_wanted_elsewhere(self) -> bool:
        ledger = self._log.ledger
        wanting = [host for host in ledger.without_snapshot() if host != ledger.host]
        return any(self._replica.version >= ledger.least_version(host) for host in wanting)

    def _is_still_latest(self, place: SnapshotPlace) -> bool:
        """Nobody overwrites the latest snapshot: whatever was read of it until now was whole."""
        self._log.look()
        return self._log.ledger.snapshots.latest == place

    def _patience_s(self) -> float:
        if self._log.ledger.snapshots.claims:
            return WRITING_S
        return 0.0 if self.is_needed_here() else OVERDUE_S

    def _is_mine_to_write(self, record: Round) -> bool:
        """One of those of this host who were on time, in turn."""
        ledger = self._log.ledger
        of, here = ledger.hosts.of, ledger.host
        waiting = sorted({c.rank for c in record.contributions if of[c.rank] == here and ledger.waits(c)})
        return bool(waiting) and waiting[record.number % len(waiting)] == self._engine.rank

    async def _write(self, anew: bool = False) -> None:
        """`anew`: it takes the place of one of the same version, if no round went on from that yet."""
        engine, log = self._engine, self._log
        buffer = log.ledger.snapshots.free_buffer(engine.rank)
        log.append(Claim(engine.rank, log.incarnation, buffer))
        if log.ledger.snapshots.claims.get(buffer) != (engine.rank, log.incarnation):
            return  # another rank was quicker; its snapshot serves as well
        version, position = self._replica.version, log.position
        await self._memory.save(buffer, self._replica.capture(), version, log.ledger, position)
        log.append(Snapshot(engine.rank, log.incarnation, buffer, version, position, anew))
        written = SnapshotPlace(buffer, version, position)
        if log.ledger.snapshots.latest == written:
            log.cut(position, buffer)
            if anew:
                self._base = written

    def _tidy_up(self, record: Round) -> None:
        """Gives back what was needed only while somebody was late, or began."""
        if not self._holds:
            self._memory.tidy(record.number)
        snapshots = self._log.ledger.snapshots
        if self._log.ledger.is_spent() and not snapshots.claims and snapshots.latest is not None:
            spent = snapshots.latest.buffer
            for buffer in (spent, *(b for b in range(snapshots.buffers) if b != spent)):
                self._empty(buffer, keeps_ledger=buffer == spent)
            self._log.append(Claim(self._engine.rank, self._log.incarnation, snapshots.buffers))

    def _empty(self, buffer: int, keeps_ledger: bool) -> None:
        me = (self._engine.rank, self._log.incarnation)
        self._log.append(Claim(*me, buffer))
        if self._log.ledger.snapshots.claims.get(buffer) == me:
            self._memory.empty(buffer, keeps_ledger)

    async def _adopt(self, at_least: int, is_beginning: bool = False) -> None:
        """Becomes the latest snapshot of at least that version from which it can go on, waiting for one if need be."""
        log = self._log

        def is_there() -> bool:
            return self._latest() >= max(at_least, log.ledger.least_version(log.ledger.host))

        while True:
            await self._engine.until(is_there, "for a snapshot to catch up with")
            latest = log.ledger.snapshots.latest
            assert latest is not None
            contents, is_whole = self._memory.load(latest.buffer), partial(self._is_still_latest, latest)
            if contents is not None and self._replica.adopt(contents, latest.version, is_beginning, is_whole):
                self._base = latest
                self._replica.keep_only(self._steps_in(self._log.ledger.pending(self._engine.rank)))
                return
