"""Supervises the ranks of one job on this machine. Owns what happens when one of them ends.

A rank that ends before its training does is restarted, alone: the others go on, and it takes over what they have.
The job ends when a rank cannot be brought back, when too few are left for it to rejoin, or when a signal says so.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

from outpace.job.environment import MIN_RANKS, RESTARTS, environment_of
from outpace.job.store import open_store
from outpace.launching.child import WINDOW_S, Ending, Restarts, Seat, last_words, say
from outpace.launching.signals import Signals

LOOK_EVERY_S = 1.0  #: at the others, while a rank is lost after its training


@dataclass(frozen=True)
class Job:
    ranks: int
    command: Sequence[str]
    max_restarts: int = 10  #: of one rank, within `WINDOW_S`
    min_ranks: int | None = None
    stop_within_s: float = 10.0  #: for ranks that were asked to end; then they are killed


@dataclass(frozen=True)
class Outcome:
    code: int
    why: str = ""
    words: str = ""  #: the traceback of who failed, to be shown last


class Supervisor:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._store = open_store()
        self._seats = [Seat(rank, self._store, Restarts(job.max_restarts)) for rank in range(job.ranks)]
        self._has_begun = False  # all ranks have joined a training
        self._lost: Ending | None = None  # a rank that ended badly after its training
        self._outcome: Outcome | None = None
        self._is_patient = False  # the ranks are about to end by themselves

    def run(self) -> Outcome:
        """Runs to the end. Blocks; no process of the job is left when it returns, whatever happens."""
        with Signals() as signals:
            try:
                for seat in self._seats:
                    self._start(seat)
                while self._outcome is None and not signals.ends and self._is_unfinished():
                    signals.wait(self._until_next_s())
                    self._look()
                self._end_all(signals)
            finally:
                self._kill_all()
            return self._result(signals)

    def _is_unfinished(self) -> bool:
        return any(seat.lives or seat.due_s is not None for seat in self._seats)

    def _until_next_s(self) -> float | None:
        now = time.monotonic()
        waits = [max(0.0, seat.due_s - now) for seat in self._seats if seat.due_s is not None]
        return min([*waits, LOOK_EVERY_S] if self._lost is not None else waits, default=None)

    def _look(self) -> None:
        for seat in self._seats:
            if seat.child is not None and seat.child.has_ended():
                self._take_note(seat, seat.end())
        if self._outcome is None and self._lost is not None:
            self._see_to_the_others(self._lost)
        if self._outcome is None:
            for seat in self._seats:
                if seat.due_s is not None and seat.due_s <= time.monotonic():
                    self._start(seat)

    def _start(self, seat: Seat) -> None:
        job = self._job
        environment = {**os.environ, **environment_of(seat.rank, job.ranks, self._store.port)}
        if job.max_restarts:
            environment[RESTARTS] = str(job.max_restarts)
        if job.min_ranks is not None:
            environment[MIN_RANKS] = str(job.min_ranks)
        seat.start(job.command, environment)

    # -- when a rank has ended -------------------------------------------------------------------------------------

    def _take_note(self, seat: Seat, ending: Ending) -> None:
        self._has_begun = self._has_begun or any(other.count("joined") for other in self._seats)
        if ending.is_good or self._outcome is not None:
            return
        if ending.error == "BelowQuorum":
            self._is_patient = True
            self._fail(ending, "too few ranks are left")
        elif ending.error == "CannotRejoin":
            self._fail(ending, "it cannot come back to this training")
        elif ending.error or ending.finished:
            self._lose(ending)
        elif self._has_begun and not any(other.lives and other.count("joined") for other in self._seats):
            self._fail(ending, "BelowQuorum: no rank is left that has the weights. Restart from the last checkpoint")
        elif not self._has_begun and all(other.has_raised for other in self._seats):
            self._fail(ending, "every rank failed before training began")
        else:
            self._restart(seat, ending)

    def _restart(self, seat: Seat, ending: Ending) -> None:
        now = time.monotonic()
        delay_s = seat.restarts.after(now, ending.lived_s)
        if delay_s is None:
            limit = f"it used up its restart limit ({seat.restarts.limit} within {WINDOW_S / 60:.0f} minutes)"
            self._fail(ending, limit if seat.restarts.limit else "no rank is restarted")
            return
        seat.due_s = now + delay_s
        say(f"{ending}; it will be restarted in {delay_s:.1f} s ({seat.restarts.count} of {seat.restarts.limit})")

    def _lose(self, ending: Ending) -> None:
        """A training that it had finished, or missed the end of, cannot be joined again. Others may still use it."""
        say(f"{ending}, after a training that is over: it is not restarted")
        self._lost = self._lost or ending
        if ending.joined > ending.finished > 0:
            self._fail(ending, "a rank that has finished one training cannot be brought back to the next")

    def _see_to_the_others(self, lost: Ending) -> None:
        """They end by themselves, unless they wait for the lost one in another training."""
        over = max(lost.joined, 1)
        if any(seat.lives and seat.count("joined") > over for seat in self._seats):
            self._fail(lost, "the others have begun another training, which it can no longer join")

    def _fail(self, ending: Ending, why: str) -> None:
        self._outcome = Outcome(1, f"{ending}: {why}", last_words(ending.words))

    # -- the end ---------------------------------------------------------------------------------------------------

    def _result(self, signals: Signals) -> Outcome:
        if self._outcome is None and signals.ends:
            return Outcome(128 + signals.ends[0])
        if self._outcome is None and self._lost is not None:
            self._fail(self._lost, "the training itself has finished")
        return self._outcome or Outcome(0)

    def _end_all(self, signals: Signals) -> None:
        """Asks the remaining ranks to end, and gives them time; another signal cuts that short."""
        asked = len(signals.ends)
        living = [seat for seat in self._seats if seat.lives]
        if self._is_patient and not asked:  # but not with those who are only about to join
            self._ask([seat for seat in living if not seat.count("joined")], signal.SIGTERM)
            self._await_all(signals, asked)
        self._ask(living, signals.ends[0] if asked and self._outcome is None else signal.SIGTERM)
        self._await_all(signals, asked)

    def _ask(self, seats: Sequence[Seat], number: int) -> None:
        for seat in seats:
            if seat.child is not None:
                if number == signal.SIGINT:
                    seat.child.tail.is_interrupted = True
                seat.child.signal(number)

    def _await_all(self, signals: Signals, asked: int) -> None:
        deadline = time.monotonic() + self._job.stop_within_s
        while any(seat.lives for seat in self._seats) and len(signals.ends) == asked:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return
            signals.wait(left_s)
            for seat in self._seats:
                if seat.child is not None and seat.child.has_ended():
                    seat.end()

    def _kill_all(self) -> None:
        for seat in self._seats:
            if seat.child is not None:
                seat.child.signal(signal.SIGKILL)
        for seat in self._seats:
            if seat.child is not None:
                seat.end()
