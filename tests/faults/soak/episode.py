"""One job from its start to its end, disturbed all along."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

from tests.faults.soak import injectors
from tests.faults.soak.diary import Life
from tests.faults.soak.injectors import Fault
from tests.faults.soak.job import Job
from tests.faults.soak.plan import Plan
from tests.faults.soak.rank import LIVES

START_S, END_S, HANG_S = 120.0, 90.0, 25.0  #: no measure of anything: a hang becomes a finding
TICK_S = 0.004
STOPS_S = (0.02, 0.1, 1.0)  #: longest of each kind
ALONE, ALONE_S = 0.05, (0.5, 2.0)  #: share of faults that are stops with nothing else wrong, and how long these last
STARTING_KILLED = 0.15  #: share of kills that may hit a rank that has not joined yet


class Hang(Exception):
    """Nothing moves."""


class Episode:
    """A job, the faults that happened in it, and whether it hung."""

    def __init__(self, plan: Plan, directory: Path) -> None:
        self.plan = plan
        self.faults: list[Fault] = []
        self.missed = 0  #: faults that were tried and did not happen
        self.hang = ""
        self.job = Job(plan, directory)
        self._draws = plan.draws()
        self._alone = ""  # a stop that is to be alone comes "next", or lasts "now"
        self._stopped: dict[int, tuple[Fault, Life, float]] = {}  # rank -> until when
        self._killed: dict[int, Fault] = {}

    def run(self, until_s: float) -> None:
        """Disturbs it until its time or the soak's is over, and lets it come to its end."""
        try:
            self._await(self._all_contribute, START_S, "all ranks contribute")
            self._disturb(min(until_s, time.monotonic() + self.plan.seconds))
            self._wake_all()
            if self._draws.random() < 0.5:
                self._await(lambda: not self._killed, START_S, "the killed ranks contribute again")
            self.job.stop_training()
            if not self.job.await_end(END_S):
                raise Hang("the launcher does not end after training")
        except Hang as hang:
            self.hang = f"{hang}; {self._standing()}"
        finally:
            self._wake_all()
            self.job.kill()
            self.job.look()

    # -- faults ------------------------------------------------------------------------------------------------------

    def _disturb(self, until_s: float) -> None:
        next_s = time.monotonic() + 1.0  # a while without faults, to compare with
        while time.monotonic() < until_s and self.job.code is None:
            self._look()
            now = time.monotonic()
            for rank in [rank for rank, (*_, wake_s) in self._stopped.items() if wake_s <= now]:
                self._wake(rank)
            if now >= next_s and self._one_more():
                next_s = now + self._draws.expovariate(1 / self.plan.gap_s)
                if self._draws.random() < 0.05:
                    next_s += 1.0  # quiet
            time.sleep(TICK_S)

    def _one_more(self) -> bool:
        """One more fault, unless as many ranks are in trouble as the strategy can do without."""
        troubled = {*self._stopped, *self._killed}
        if self._alone and troubled:
            return False
        if self._alone == "now":
            self._alone = ""
        elif self._alone == "next" or self._draws.random() < ALONE:
            return self._stop_alone(troubled)
        is_kill = self._draws.random() < self.plan.kills
        spare = self.plan.ranks // 2 - len(troubled)
        candidates = self._victims(is_kill, spare, troubled)
        if not candidates:
            return False
        life = self._draws.choice(candidates)
        if is_kill:
            self._kill(life)
        else:
            self._stop(life, self._draws.choice(STOPS_S) * self._draws.random())
        return True

    def _stop_alone(self, troubled: set[int]) -> bool:
        """A stop for so long that the others' rate can be seen, as soon as nothing else is wrong."""
        self._alone = "next" if troubled else "now"
        if not troubled:
            victim = self.job.latest(self._draws.randrange(self.plan.ranks))
            assert victim is not None
            self._stop(victim, self._draws.uniform(*ALONE_S))
        return not troubled

    def _victims(self, is_kill: bool, spare: int, troubled: set[int]) -> list[Life]:
        """Ranks that contribute, if more of them can be spared; and some that are in trouble already may be killed."""
        newest = [life for rank in range(self.plan.ranks) if (life := self.job.latest(rank)) is not None]
        found = [life for life in newest if spare > 0 and life.rank not in troubled and life.steps]
        if is_kill and self._draws.random() < STARTING_KILLED:
            found += [
                life for life in newest if life.rank in troubled and not self._is_replaced_soon(life) and life.pid
            ]
        return [life for life in found if life.life < LIVES]

    def _is_replaced_soon(self, life: Life) -> bool:
        """Whether it was killed, and its replacement has not begun."""
        fault = self._killed.get(life.rank)
        return fault is not None and fault.life == life.life

    def _kill(self, life: Life) -> None:
        fault = injectors.kill(life)
        if fault is None:
            self.missed += 1
            return
        if life.rank in self._stopped:
            self._stopped.pop(life.rank)[0].ended_s = fault.began_s
        before = self._killed.get(life.rank)
        if before is not None:
            before.ended_s = fault.began_s  # its replacement never contributed
            before.is_alone = False
        self._add(fault)
        self._killed[life.rank] = fault

    def _stop(self, life: Life, seconds: float) -> None:
        fault = injectors.stop(life)
        if fault is None:
            self.missed += 1
            return
        self._add(fault)
        self._stopped[life.rank] = (fault, life, time.monotonic() + seconds)

    def _add(self, fault: Fault) -> None:
        running = [other for other in self.faults[-20:] if other.ended_s is None]
        fault.is_alone = not running
        for other in running:
            other.is_alone = False
        self.faults.append(fault)

    def _wake(self, rank: int) -> None:
        fault, life, _ = self._stopped.pop(rank)
        fault.ended_s = time.monotonic()
        if not injectors.wake(life):
            self.missed += 1
            self.faults.remove(fault)

    def _wake_all(self) -> None:
        for rank in list(self._stopped):
            if injectors.state_of(self._stopped[rank][1].pid):
                self._wake(rank)
            else:
                del self._stopped[rank]

    # -- looking -------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        self.job.look()
        for rank, fault in list(self._killed.items()):
            newest = self.job.latest(rank)
            if newest is not None and newest.life > fault.life and newest.steps:
                fault.ended_s = newest.steps[0][1]
                del self._killed[rank]
        now = time.monotonic()
        for rank, lives in self.job.lives.items():
            life = lives[-1] if lives else None
            since_s = None if life is None or rank in (*self._stopped, *self._killed) else life.in_step
            if since_s is not None and now - since_s > HANG_S:
                raise Hang(f"rank {rank} has been in a step for {now - since_s:.0f} s")

    def _await(self, condition, seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        self._look()
        while not condition():
            if self.job.code is not None:
                return  # which the checks see
            if time.monotonic() > deadline:
                raise Hang(f"not within {seconds:.0f} s: {what}")
            time.sleep(TICK_S)
            self._look()

    def _all_contribute(self) -> bool:
        return all(life is not None and life.steps for life in map(self.job.latest, range(self.plan.ranks)))

    def _standing(self) -> str:
        lives = [life for life in map(self.job.latest, range(self.plan.ranks)) if life is not None]
        return ", ".join(
            f"rank {life.rank} life {life.life} pid {life.pid} state {injectors.state_of(life.pid) or 'gone'} "
            f"{len(life.steps)} steps, {'in a step' if life.in_step else 'not in a step'}"
            for life in lives
        )


def interrupt(job: Job, kind: str, draws: random.Random) -> None:
    """Ctrl-C on the launcher, in one of several ways."""
    job.look()
    if kind == "stopped":  # a rank hears nothing until it is woken
        life = job.latest(draws.randrange(job.plan.ranks))
        if life is not None:
            injectors.stop(life)
    os.kill(job.pid, signal.SIGTERM if kind == "term" else signal.SIGINT)
    if kind == "twice":
        time.sleep(draws.random() * 0.1)
        job.look()
        job.signal(signal.SIGINT)
