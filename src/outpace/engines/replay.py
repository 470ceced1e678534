"""Keeps a replica up to date: round by round, or from a snapshot if it lags far, joins late or was restarted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from outpace.interface import Contents, Result
from outpace.protocol.events import Claim, Snapshot
from outpace.protocol.ledger_view import NOWHERE, SnapshotPlace
from outpace.protocol.round import Contribution, Round
from outpace.replica.replica import OptimizerReplica

if TYPE_CHECKING:
    from outpace.engines.engine import Engine

OVERDUE_S = 0.1  #: if nobody writes a due snapshot for this long, any waiting rank does
SOON_S = 0.001  #: one that a rank waits for is written at once, or after the round that is being reduced
WRITING_S = 2.0  #: if a rank has been writing one for this long, another takes over: the writer may be stopped
REPLAY_AT_MOST = 2  #: a rank further behind a snapshot adopts it: copying costs about as much as applying one round


class Replay:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._replica: OptimizerReplica = engine.replica
        self._log, self._memory = engine.log, engine.memory
        self._overdue: tuple[object, float] | None = None  # the latest snapshot with all writers, and since when
        self._origin: SnapshotPlace | None = None  # the snapshot that this replica last adopted
        self._patient_until_s: float | None = None  # while it starts: how long it waits for an up-to-date base
        self._holds = False  # whether it holds a result

    @property
    def version(self) -> int:
        """Rounds this replica has applied; where weights are averaged, its local steps."""
        return self._replica.version

    # -- applying --------------------------------------------------------------------------------------------------

    async def apply_until(self, version: int) -> None:
        """Brings the replica to this version, or beyond it if only a later snapshot is left. The rounds up to it must
        be complete."""
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
        """Waits, and applies the rounds that complete meanwhile."""
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
            if self._log.ledger.completed.get(record.number) is record:  # otherwise the caller adopts a snapshot
                self._replica.apply(self._own(self._memory.result(record)))
        finally:
            if not self._replica.staging.is_reading:
                self.let_go()

    def let_go(self) -> None:
        """Ends the hold of an applied result. A device may read it longer than `apply` takes, so this is done late.
        Nobody needs the slot earlier: the others learn that the round was applied from this rank's next contribution.
        """
        if self._holds:
            if self._replica.staging.is_reading:
                self._replica.staging.until_read()
            self._memory.release()
            self._holds = False

    def _own(self, result: Result) -> Result:
        """Adds which of this rank's steps are in the result, if there is a codec to be told."""
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
        """Called after a local step. Where weights are published, the number of steps is the replica's version."""
        engine = self._engine
        if engine.rules.publishes is not None:
            self._replica.version = engine.steps
            if self._is_due() and engine.steps % engine.world == engine.rank:
                await self._write()

    # -- beginning -------------------------------------------------------------------------------------------------

    async def share_beginning(self) -> None:
        """The first living rank writes a snapshot if there is none yet; all ranks start from it."""
        while self._latest() < 0:
            if self._is_first():
                await self._write()
            else:
                await self._engine.until(lambda: self._latest() >= 0 or self._is_first(), "for the first weights")
        await self.take_up()

    async def take_up(self) -> None:
        """Adopts the others' state, whatever was loaded here. Waits a while for an up-to-date base, but not for ever:
        all ranks that could write one may be stopped or dead."""
        self._patient_until_s = self._log.now_s() + WRITING_S
        try:
            await self._adopt(at_least=0, is_beginning=True)
        finally:
            self._patient_until_s = None

    async def resume(self, version: int) -> None:
        self._replica.version = version
        await self.share_beginning()

    async def begin_with_own(self) -> None:
        """Called if weights were loaded after this rank joined but before it contributed: makes all ranks start from
        them. If another rank was first, or some already train, this rank adopts the others' state instead.
        """
        self._log.look()
        ledger = self._log.ledger
        has_trained = self._engine.came_late or ledger.complete > self._replica.version
        is_first = not has_trained and ledger.snapshots.latest == self._origin
        if is_first:
            self._replica.on_weights_replaced()
            await self._write(anew=True)
        if not is_first or self._log.ledger.snapshots.latest != self._origin:
            await self.take_up()

    def _is_first(self) -> bool:
        """Whether all ranks start from this rank's weights. Not if another host has a snapshot already."""
        ledger, rank = self._log.ledger, self._engine.rank
        unfinished, source = ledger.open.unfinished, ledger.sync.source
        first = source if source in unfinished else min(unfinished, default=rank)
        return rank == first and all(snapshots.latest is None for snapshots in ledger.snapshots_at)

    # -- snapshots -------------------------------------------------------------------------------------------------

    async def write_overdue_snapshot(self) -> bool:
        """Called while waiting: writes a due snapshot if its writer seems lost. A lagging rank may wait for it, and
        this rank for that one. True if it wrote one."""
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
        """In how many seconds to check again whether a snapshot is overdue or no longer worth waiting for; None if
        there is nothing to check."""
        if self._patient_until_s is not None:
            left_s = self._patient_until_s - self._log.now_s()
            return left_s if left_s > 0 else None
        return max(self._patience_s(), SOON_S) if self._is_due() else None

    async def leave_a_snapshot(self) -> None:
        """Leaves one for ranks of this host that wake up after all others have left."""
        if self.is_needed_here():
            await self._write()

    def _is_superseded(self) -> bool:
        """Whether this replica is still exactly the snapshot it adopted, and there is another by now: that one may be
        of weights loaded since."""
        origin, latest, version = self._origin, self._log.ledger.snapshots.latest, self._replica.version
        if origin is None or latest is None or origin == latest:
            return False
        return origin.version == version <= latest.version

    def _latest(self) -> int:
        """The version of the latest snapshot, -1 if there is none to adopt."""
        latest = self._log.ledger.snapshots.latest
        return -1 if latest is None or latest.buffer == NOWHERE else latest.version

    def _is_due(self) -> bool:
        """Whether a rank needs a snapshot, or soon will, and this replica can write it."""
        ledger, latest, mine = self._log.ledger, self._log.ledger.snapshots.latest, self._replica.version
        if latest is None or not self._can_write():
            return False
        if self.is_needed_here() or (ledger.hosts.count > 1 and self._is_wanted_elsewhere()):
            return True
        late = mine - max(1, self._engine.rules.max_staleness - 1)  # ranks this far behind soon find no results
        if latest.version > late:
            return False
        is_regular = ledger.hosts.count > 1 or ledger.rules.publishes is not None
        return is_regular or ledger.results.least <= late or self._log.is_long_since(latest.position)

    def is_needed_here(self) -> bool:
        """Whether a rank of this host waits for a snapshot or a base, and this replica is new enough to write it."""
        ledger, mine = self._log.ledger, self._replica.version
        if not self._can_write():
            return False
        if ledger.lacks_base(ledger.host) and mine >= self._latest():
            return True
        return ledger.least_version(ledger.host) <= mine and ledger.lacks_snapshot(ledger.host)

    def _can_write(self) -> bool:
        """Whether this replica has the state that rounds produced. A starting one has not, whatever was loaded here."""
        return self._origin is not None and self._patient_until_s is None and not self._replica.is_torn

    def _is_base_needed(self) -> bool:
        """Whether a rank will start from the next snapshot, here or on a host it is sent to; or no base exists yet."""
        ledger, here = self._log.ledger, self._log.ledger.host
        if ledger.snapshots.base is None or ledger.somebody_begins(here):
            return True
        return any(host != here for host in ledger.without_snapshot())

    def _is_wanted_elsewhere(self) -> bool:
        ledger = self._log.ledger
        wanting = [host for host in ledger.without_snapshot() if host != ledger.host]
        return any(self._replica.version >= ledger.least_version(host) for host in wanting)

    def _are_still_latest(self, place: SnapshotPlace, base: SnapshotPlace | None) -> bool:
        """If both are still the latest, nobody has begun to overwrite them, and what was read of them is intact."""
        self._log.look()
        snapshots = self._log.ledger.snapshots
        return snapshots.latest == place and (base is None or snapshots.base == base)

    def _patience_s(self) -> float:
        if self._log.ledger.snapshots.claims:
            return WRITING_S
        return 0.0 if self.is_needed_here() else OVERDUE_S

    def _is_mine_to_write(self, record: Round) -> bool:
        """Whether it is this rank's turn, among those of this host that were on time."""
        ledger = self._log.ledger
        of, here = ledger.hosts.of, ledger.host
        waiting = sorted({c.rank for c in record.contributions if of[c.rank] == here and ledger.waits(c)})
        return bool(waiting) and waiting[record.number % len(waiting)] == self._engine.rank

    async def _write(self, anew: bool = False) -> None:
        """`anew`: replaces a snapshot of the same version, if no round was applied to that yet."""
        engine, log = self._engine, self._log
        buffer = log.ledger.snapshots.free_buffer(engine.rank)
        log.append(Claim(engine.rank, log.incarnation, buffer))
        if log.ledger.snapshots.claims.get(buffer) != (engine.rank, log.incarnation):
            return  # another rank was faster; its snapshot will do as well
        version, position = self._replica.version, log.position
        contents = self._replica.capture()
        has_base = anew or not contents.base or self._is_base_needed()
        if not has_base:
            contents.base.clear()
        await self._memory.save(buffer, contents, version, log.ledger, position)
        log.append(Snapshot(engine.rank, log.incarnation, buffer, version, position, anew, has_base))
        written = SnapshotPlace(buffer, version, position)
        if log.ledger.snapshots.latest == written:
            log.cut(position, buffer)
            if anew:
                self._origin = written

    def _tidy_up(self, record: Round) -> None:
        """Frees what was needed only while a rank was late or starting."""
        if not self._holds:
            self._memory.tidy(record.number)
        snapshots = self._log.ledger.snapshots
        if self._log.ledger.is_spent() and not snapshots.claims and snapshots.latest is not None:
            spent = snapshots.latest.buffer
            for buffer in (*(b for b in range(snapshots.buffers) if b != spent), spent):
                self._empty(buffer, keeps_ledger=buffer == spent)
            self._log.append(Claim(self._engine.rank, self._log.incarnation, snapshots.buffers))

    def _empty(self, buffer: int, keeps_ledger: bool) -> None:
        me = (self._engine.rank, self._log.incarnation)
        self._log.append(Claim(*me, buffer))
        snapshots = self._log.ledger.snapshots
        if snapshots.claims.get(buffer) == me:
            self._memory.empty(buffer, keeps_ledger, snapshots.base is not None and snapshots.base.buffer == buffer)

    async def _adopt(self, at_least: int, is_beginning: bool = False) -> None:
        """Adopts the latest snapshot, of at least that version and with all later results at hand; waits for one if
        need be."""
        log = self._log

        def is_there() -> bool:
            is_new = self._latest() >= max(at_least, log.ledger.least_version(log.ledger.host))
            return is_new and not (is_beginning and self._awaits_base())

        while True:
            await self._engine.until(is_there, "for a snapshot to catch up with")
            snapshots = log.ledger.snapshots
            latest, base = snapshots.latest, snapshots.base if is_beginning else None
            assert latest is not None
            contents, is_whole = self._loaded(latest, base), partial(self._are_still_latest, latest, base)
            if contents is not None and self._replica.adopt(contents, latest.version, is_beginning, is_whole):
                self._origin = latest
                self._replica.keep_only(self._steps_in(self._log.ledger.pending(self._engine.rank)))
                return

    def _awaits_base(self) -> bool:
        """Whether a starting rank should still wait for a base as new as the weights."""
        snapshots = self._log.ledger.snapshots
        if not snapshots.is_without_base or self._engine.rank not in snapshots.joined:
            return False
        return self._patient_until_s is not None and self._log.now_s() < self._patient_until_s

    def _loaded(self, latest: SnapshotPlace, base: SnapshotPlace | None) -> Contents | None:
        """A snapshot with its base, which may be an older snapshot's. None if one of them is being overwritten."""
        contents = self._memory.load(latest.buffer)
        beneath = contents if base is None or base == latest else self._memory.load(base.buffer)
        return None if contents is None or beneath is None else replace(contents, base=beneath.base)
