"""The ledger: who is in which round, as the pure fold of the log.

Owns what each event does to rounds, membership and synchronisation; its parts (`ledger_view.py`) own the rest: the open
round, results, snapshots, published weights. Must never look at a clock, a file or another rank: two ledgers that read
the same events are equal. An event that no longer applies is a no-op with a reason, so any rank may append a seal,
attempt, done or dead that another has already appended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from outpace.protocol import events
from outpace.protocol.events import Event, Outcome, OutcomeKind, ignored, taken
from outpace.protocol.ledger_view import LedgerView, SnapshotPlace, Snapshots
from outpace.protocol.members import ACTIVE, AWAY, FINISHED, SYNCING, Member, quorum_is_met
from outpace.protocol.round import Contribution, Round
from outpace.protocol.rules import Rules, needed

EXPECTED_FOR_ROUNDS = 2  #: grace waits only for ranks that arrived in the open round or the last two


class Ledger(LedgerView):
    # -- folding ---------------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> Outcome:
        return _HANDLERS[type(event)](self, event)

    def _join(self, event: events.Join) -> Outcome:
        if self.over:
            return ignored("all ranks have finished")
        if self.hosts.of[event.rank] in self.hosts.gone:  # nobody could report its death
            return ignored("its host was given up, and its agent is not back")
        if not self.members.join(event.rank, event.incarnation, self.round):
            return ignored("an older or known incarnation")
        self.started = self.started or len(self.members.by_rank) == self.rules.world
        self._snapshots_of(event.rank).join(event.rank)
        self.pace.forget(event.rank)
        self.pool.leave(event.rank)
        self.results.join(event.rank)
        self._follow(self.members.by_rank[event.rank])
        self._settle(event.time_ns)
        return taken(f"rank {event.rank} joined as incarnation {event.incarnation}")

    def _arrive(self, event: events.Arrive) -> Outcome:
        rank, incarnation, step, version, row, samples, planned, pieces, is_part, covered, time_ns = event
        member, open_round = self.members.current(rank, incarnation), self.open
        if member is None:
            return ignored("not a living member")
        if member.state == AWAY:
            self._come_back(member)
        if member.state != ACTIVE:
            return ignored(f"the rank is {member.state}")
        if step < member.last_step or (step == member.last_step and pieces == 1):
            return Outcome(OutcomeKind.REPEATED, f"ignored: step {step} arrived before")
        lag = self.round - version
        if lag < 0 or (rank, row) in open_round.rows:
            return ignored("its row is taken or its version is not yet decided")
        if pieces > 1:
            earlier = open_round.part_of(rank, incarnation)
            if earlier is None or earlier.pieces != pieces - 1:
                return self._come_too_late(rank)
            open_round.add_to(earlier)
        member.last_step, member.last_round = step, self.round
        self.results.has_applied(rank, version)
        if covered:
            self.pool.cover(rank, incarnation, step, covered)
        if self._observes:
            self.pace.arrived(rank, version, time_ns)
        contribution = Contribution(rank, incarnation, step, version, samples, row, lag > 0, planned, pieces)
        if lag or is_part:
            outcome = self._place(contribution, lag, is_part)
        else:
            outcome = Outcome(OutcomeKind.ON_TIME, "on time", self.round)
            open_round.add(contribution)
        if len(open_round.present) >= self._needed or open_round.can <= open_round.present:
            self._settle(time_ns)
        return outcome

    def _come_too_late(self, rank: int) -> Outcome:
        """Its earlier pieces are in a sealed round: accepting it would apply them twice."""
        if self.rules.late != "drop":
            return Outcome(OutcomeKind.TOO_LATE, "too late: the round that has its earlier pieces is sealed")
        self.members.tallies[rank].dropped += 1
        return Outcome(OutcomeKind.DROPPED, "too late: dropped, the round that has its earlier pieces is sealed")

    def _place(self, contribution: Contribution, lag: int, is_part: bool) -> Outcome:
        if not lag:
            self.open.carry(contribution, is_part)
            return Outcome(OutcomeKind.PART, f"{contribution.pieces} in time so far", self.round)
        rules = self.rules
        if rules.too_late(lag):
            self.members.tallies[contribution.rank].dropped += contribution.pieces
            bound = "late ones are dropped" if rules.late == "drop" else f"max_staleness is {rules.max_staleness}"
            return Outcome(OutcomeKind.DROPPED, f"late by {lag} rounds: dropped, {bound}")
        if rules.counts(lag) and not is_part:
            self.open.add(contribution)
            return Outcome(OutcomeKind.COUNTED, f"late by {lag} rounds: counted in round {self.round}", self.round)
        self.open.carry(contribution)
        return Outcome(OutcomeKind.CARRIED, f"late by {lag} rounds: carried into round {self.round}", self.round)

    def _seal(self, event: events.Seal) -> Outcome:
        if self.rules.publishes is not None:
            return self.published.freeze_after_grace(event.number)
        if event.number != self.round or self.deadline_ns is None:
            return ignored("that round is sealed, or its quorum is not met")
        self._close_round()
        self._settle(event.time_ns)
        return taken(f"round {event.number} sealed after grace")

    def _attempt(self, event: events.Attempt) -> Outcome:
        sealed = self.reducing
        if sealed is None or event.round != sealed.number or event.attempt != sealed.attempt + 1:
            return ignored("not the next attempt of the sealed round")
        if event.slot not in self.free_slots():
            return ignored("that slot is in use")
        self._try_again(sealed._replace(slot=event.slot))
        return taken(f"round {event.round}: attempt {event.attempt} in slot {event.slot}")

    def _refuse(self, event: events.Refuse) -> Outcome:
        sealed = self.reducing
        who = (event.rank, event.incarnation, event.step)
        hit = next((c for c in sealed.contributions if c[:3] == who), None) if sealed else None
        if sealed is None or hit is None:
            return ignored("no such contribution is being reduced")
        self._leave_out(sealed, [hit], event.time_ns)
        return taken(f"rank {event.rank} step {event.step}: not finite, refused in round {sealed.number}")

    def _done(self, event: events.Done) -> Outcome:
        sealed = self.reducing
        if sealed is None or (event.round, event.attempt) != (sealed.number, sealed.attempt):
            return ignored("that attempt is decided")
        self._complete(sealed._replace(clip=event.clip, void=event.void), event.time_ns)
        return taken(f"round {event.round} {'overflowed: void' if event.void else 'complete'}")

    def _sync(self, event: events.Sync) -> Outcome:
        member = self.members.current(event.rank, event.incarnation)
        if member is None or member.state not in (ACTIVE, AWAY) or event.generation != self.sync.generation:
            return ignored("not an active member of this synchronisation")
        member.state, member.unfinished_elsewhere = SYNCING, event.unfinished
        self.sync.enter(event.rank, event.resume, event.steps)
        self.pool.cover(event.rank, event.incarnation, 0, event.covered)
        self._follow(member)
        self._settle(event.time_ns)
        return taken(f"rank {event.rank} waits in synchronisation {event.generation}")

    def _finish(self, event: events.Finish) -> Outcome:
        member = self.members.current(event.rank, event.incarnation)
        if member is None or (member.state == FINISHED and (member.has_ended or not event.ends_process)):
            return ignored("not a living member with data left")
        member.state, member.has_ended = FINISHED, event.ends_process
        self.pool.finish(event.rank)
        self._follow(member)
        self._settle(event.time_ns)
        return taken(f"rank {event.rank} has finished and leaves the quorum")

    def _away(self, event: events.Away) -> Outcome:
        member = self.members.current(event.rank, event.incarnation)
        if member is None or member.state != ACTIVE:
            return ignored("nobody waits for that rank")
        member.state, member.away_in, member.is_at_end = AWAY, event.optimizer, event.is_at_end
        self._follow(member)
        self._settle(event.time_ns)
        return taken(f"rank {event.rank} waits in another optimizer, and is not waited for here")

    def _back(self, event: events.Back) -> Outcome:
        member = self.members.current(event.rank, event.incarnation)
        if member is None or member.state != AWAY:
            return ignored("that rank is not away")
        self._come_back(member)
        return taken(f"rank {event.rank} is back from another optimizer")

    def _come_back(self, member: Member) -> None:
        member.state = ACTIVE
        self._follow(member)

    def _dead(self, event: events.Dead) -> Outcome:
        member = self.members.current(event.rank, event.incarnation)
        if member is None:
            return ignored("that incarnation is gone already")
        self._remove(member)
        self._settle(event.time_ns)
        return taken(f"rank {event.rank} is dead; what it had contributed stays")

    def _remove(self, member: Member) -> None:
        member.alive = False
        self._snapshots_of(member.rank).release(member.rank)
        self.pace.forget(member.rank)
        self.pool.leave(member.rank)
        self._follow(member)
        if not (self.rules.restarts and member.is_expected):  # otherwise it will come back, late
            self.results.forget(member.rank)

    def _agent(self, event: events.Agent) -> Outcome:
        if not self.hosts.enter(event.host, event.number, self.complete):
            return ignored("an older or known agent")
        self._news += 1
        if self.reducing is not None:
            self._try_again(self.reducing._replace(slot=self._free_slot()))
        return taken(f"agent {event.number} of host {event.host} begins; group {self.hosts.generation}")

    def _gone(self, event: events.Gone) -> Outcome:
        host = event.host
        if not self.hosts.give_up(host, event.number):
            return ignored("that host is gone already, or has another agent")
        self._news += 1
        lost = set(self.hosts.ranks[host])
        self.snapshots_at[host].begin_anew()
        in_no_round = [c for c in self.on_time + self.carried if c.rank in lost]
        for contribution in in_no_round:
            self.open.give_up(contribution)
            self.members.tallies[contribution.rank].dropped += contribution.pieces
        if self.reducing is not None:
            left_out = [c for c in self.reducing.contributions if c.rank in lost]
            self.pool.lose(left_out)  # before the round can complete without any contribution
            self._leave_out(self.reducing, left_out, event.time_ns)
        self.pool.lose(in_no_round)
        for member in [m for m in self.members.by_rank.values() if m.rank in lost and m.alive]:
            self._remove(member)
        self._settle(event.time_ns)
        return taken(f"host {host} is given up with ranks {sorted(lost)}; group {self.hosts.generation}")

    def _commit(self, event: events.Commit) -> Outcome:
        if not self.hosts.commit(event.host, event.life, event.inbox):
            return ignored("that much is known to be in the log")
        return taken(f"host {event.host}: {event.inbox} bytes of its inbox are in the log")

    def _claim(self, event: events.Claim) -> Outcome:
        rank, incarnation, buffer, _ = event
        is_living, snapshots = self.members.current(rank, incarnation) is not None, self._snapshots_of(rank)
        if is_living and snapshots.claim(buffer, rank, incarnation, self.is_spent()):
            return taken(f"rank {rank} writes or empties buffer {buffer}, and no other")
        return ignored("that buffer is taken")

    def _snapshot(self, event: events.Snapshot) -> Outcome:
        wanting, here = self.without_snapshot(), self.hosts.of[event.rank]
        is_news = bool(wanting) or self.lacks_base(here)
        self._news += is_news  # other snapshots are for lagging ranks, which look for themselves
        elsewhere = [host for host in wanting if event.has_base and host != here]
        place = SnapshotPlace(event.buffer, event.version, event.position)
        is_wanted = bool(elsewhere) or (event.is_anew and self.complete <= event.version)
        snapshots = self._snapshots_of(event.rank)
        if not snapshots.complete(place, event.rank, event.incarnation, event.has_base, is_wanted):
            return ignored("that buffer is not claimed by this rank, or a newer snapshot is there")
        for host in elsewhere:
            self.snapshots_at[host].receive(place)
        return taken(f"snapshot of version {event.version} in buffer {event.buffer}")

    def _share(self, event: events.Publish | events.Read | events.Swap | events.Withdraw) -> Outcome:
        member = self.members.current(event.rank, event.incarnation)
        if member is None:
            return ignored("not a living member")
        if member.state == AWAY and isinstance(event, events.Publish):
            self._come_back(member)
        outcome = self.published.apply(event)
        self.results.has_begun(event.rank)
        if isinstance(event, events.Publish) and event.covered and not outcome.is_ignored:
            self.pool.cover(event.rank, event.incarnation, event.iteration, event.covered)
        return outcome

    def _draw(self, event: events.Draw) -> Outcome:
        member = self.members.current(event.rank, event.incarnation)
        if member is None or member.state == FINISHED:
            return ignored("not a living member with steps to make")
        return self.pool.draw(event)

    def _tell(self, event: events.Tell) -> Outcome:
        self.told.setdefault(event.rank, {})[event.step, event.index] = event.value
        return taken(f"rank {event.rank} says {event.value:g}")

    # -- rounds ----------------------------------------------------------------------------------------------------

    def _snapshots_of(self, rank: int) -> Snapshots:
        return self.snapshots_at[self.hosts.of[rank]]

    def _try_again(self, sealed: Round) -> None:
        self.reducing = sealed._replace(attempt=sealed.attempt + 1)

    def _leave_out(self, sealed: Round, lost: list[Contribution], now_ns: int) -> None:
        for contribution in lost:
            self.members.tallies[contribution.rank].dropped += contribution.pieces
        left = tuple(c for c in sealed.contributions if c not in lost)
        again = sealed._replace(contributions=left, refused=(*sealed.refused, *lost), hyper_from=self._leader(left))
        self._try_again(self._weighed(again._replace(slot=self._free_slot())))
        if not left and self.reducing is not None:
            self._complete(self.reducing._replace(void=True), now_ns)

    def _settle(self, now_ns: int) -> None:
        """Seals rounds and ends synchronisations as far as the state allows. At most one round is in reduction."""
        while self.reducing is None and self.started:
            if quorum_is_met(self.rules, self.round, self.open, self._enough()):
                met_ns = self._note_quorum(now_ns)
                if self.grace_ns and self._someone_may_come(met_ns + self.grace_ns):
                    return
            elif self._goes_on_without_the_rest(now_ns):
                pass
            elif self.open.can or self.open.is_empty:
                break
            self._close_round()
        if self.reducing is None:
            self._settle_sync()
            if self.rules.restarts and self.started and self._nothing_is_left() and not self.members.expected():
                self.over = True  # at the same log position for all: a rank that joins later has nobody to train with

    def _enough(self) -> int:
        """How many arrivals make the quorum: a plain count, or what was chosen for this round."""
        if not self.rules.chooses or len(self.open.present) < self._needed:
            return self._needed
        return self.choice.needed(self.round, self._needed, self._asked, self._durations)

    def _durations(self) -> list[list[int]]:
        return self.pace.durations(sorted(self.open.unfinished | self.open.present))

    def _goes_on_without_the_rest(self, now_ns: int) -> bool:
        """Whether to give up a chosen quorum: something may have happened to its ranks since. Once as many have arrived
        as could train without the others, it waits for the rest as long as ranks have taken lately, and not at all for
        ranks silent for rounds."""
        enough = max(1, self._needed, min(self.rules.least_ranks, self._asked))
        if not self.rules.chooses or len(self.open.present) < enough:
            return False
        if not self._someone_may_come():
            return True
        if self.patient_until_ns is None and (patience := self.pace.patience_ns()) is not None:
            self.patient_until_ns = now_ns + patience
        return False

    def _someone_may_come(self, until_ns: int | None = None) -> bool:
        """Whether any rank may still arrive, by then or at all. Not one that has been silent for rounds, or that has
        never been as fast as it would have to be."""
        heard_of = self.round - EXPECTED_FOR_ROUNDS
        expected = (rank for rank in self.open.can if self.members.by_rank[rank].last_round >= heard_of)
        return any(until_ns is None or self.pace.may_be_here(rank, until_ns) for rank in expected)

    def _follow(self, member: Member) -> None:
        self._news += 1
        self.open.follow(member)
        self.members.follow(member)
        self._count_needed()
        self.published.follow(member)

    def _count_needed(self) -> None:
        """The quorum is taken of all unfinished ranks, and of those that finished after contributing to this round."""
        if self.rules.is_count:
            self._asked = len(self.open.unfinished | self.open.present)
            self._needed = needed(self.rules.quorum, self._asked)

    def _note_quorum(self, now_ns: int) -> int:
        """Notes that the quorum is met, and returns since when."""
        if self.met_ns is not None:
            return self.met_ns
        self.met_ns = now_ns
        self.pace.quorum_met(self.round, now_ns, self.rules.max_staleness)
        grace = self.rules.grace
        self.grace_ns = self.pace.grace_ns() if grace == "auto" else int(float(grace) * 1e9)
        return now_ns

    def _close_round(self) -> None:
        frozen = self.open.first() if self.rules.one_at_a_time and self.open.on_time else self.open.close()
        world = len(self.members.counted | {c.rank for c in frozen})
        self.reducing = self._weighed(Round(self.round, frozen, world, self._leader(frozen), slot=self._free_slot()))
        self.round += 1
        self.met_ns, self.grace_ns, self.patient_until_ns = None, 0, None
        self._count_needed()
        if self.rules.one_at_a_time:
            for left in [c for c in self.on_time if self.rules.too_late(self.round - c.version)]:
                self.open.give_up(left)
                self.members.tallies[left.rank].dropped += left.pieces

    def _weighed(self, sealed: Round) -> Round:
        """Adds the weight of each contribution and the length of the step. Rounds complete in order, so it is known by
        now what each rank is owed."""
        weighed = sealed._replace(weights=self.discount.weights(sealed))
        return weighed._replace(stride=self.usual_size.stride(weighed), ahead=self.lateness.ahead)

    def _free_slot(self) -> int:
        return next(self.results.free_slots(self.reducing))

    def _complete(self, result: Round, now_ns: int) -> None:
        self._news += 1
        self.results.add(result, covered=self._covered())
        self.reducing = None
        if result.hyper_from is not None:
            self.hyper_step = result.hyper_from.step
        everybody = result.contributions + result.refused
        self.open.free(everybody)
        if self.pool.given:
            self.pool.settle(everybody)
        if self._observes:
            self.pace.released((c.rank for c in everybody if self.waits(c)), now_ns)
        self.members.tally(result)
        if not result.void:
            self.discount.settle(result)
            self.usual_size.settle(result)
            self.lateness.settle(result)
        self._settle(now_ns)

    def _settle_sync(self) -> None:
        if self.open.can or not self.open.unfinished or not self.open.is_empty:
            return
        waiting = self.members.all_to_meet()
        if not waiting or any(m.state != SYNCING for m in waiting):
            return
        self.round = self.sync.complete(self.round, [m.rank for m in waiting])
        if self.sync.resumed:  # rounds are renumbered, and all ranks adopt a new snapshot
            self.results.begin_anew(self.round)
            for snapshots in self.snapshots_at:
                snapshots.begin_anew()
        self.published.go_on_from(self.sync.steps)
        self.pool.synchronized()
        for member in waiting:
            member.state = ACTIVE
            self._follow(member)

    # -- snapshots -------------------------------------------------------------------------------------------------

    def to_state(self, covered: int = 0, **instead: Any) -> dict[str, Any]:
        """The state as plain values: what a snapshot carries for ranks that cannot read the whole log. Results that a
        snapshot of version `covered` makes unnecessary are reduced to their places."""
        return super().to_state(results=self.results.from_version(covered), **instead)

    @classmethod
    def from_state(cls, rules: Rules, state: dict[str, Any], host: int = 0) -> Ledger:
        return cls(rules, host).with_state(state)

    def _restore_what_follows(self) -> None:
        for member in self.members.by_rank.values():
            self._follow(member)


_HANDLERS: dict[type, Callable[[Ledger, Any], Outcome]] = {
    events.Join: Ledger._join,
    events.Arrive: Ledger._arrive,
    events.Seal: Ledger._seal,
    events.Attempt: Ledger._attempt,
    events.Refuse: Ledger._refuse,
    events.Done: Ledger._done,
    events.Sync: Ledger._sync,
    events.Finish: Ledger._finish,
    events.Away: Ledger._away,
    events.Back: Ledger._back,
    events.Dead: Ledger._dead,
    events.Claim: Ledger._claim,
    events.Snapshot: Ledger._snapshot,
    events.Tell: Ledger._tell,
    events.Agent: Ledger._agent,
    events.Gone: Ledger._gone,
    events.Commit: Ledger._commit,
    events.Draw: Ledger._draw,
    events.Skip: lambda ledger, event: ledger.pool.skip(event),
    **dict.fromkeys((events.Publish, events.Read, events.Swap, events.Withdraw), Ledger._share),
}
