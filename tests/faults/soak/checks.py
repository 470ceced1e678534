"""What must hold of a job that has ended. Each check returns what is wrong, in words."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from pathlib import Path

from tests.faults.soak.job import Job
from tests.faults.soak.rank import PLACES

Contribution = tuple[int, int, int]


def agreement(job: Job) -> list[str]:
    """All lives had the same bits after every round that they applied, and saw the same contributions in it."""
    seen: dict[int, tuple[list[list[int]], int]] = {}
    wrong = []
    for life in job.all_lives():
        for number, found in life.rounds.items():
            if seen.setdefault(number, found) != found:
                wrong.append(f"rank {life.rank}, life {life.life} differs after round {number}")
    ends = {life.end["checksum"] for life in job.all_lives() if life.end is not None}
    if len(ends) > 1:
        wrong.append(f"{len(ends)} different weights at the end")
    return wrong


def exactly_once(job: Job) -> list[str]:
    """What the records say was applied, what the weights counted, and what the ranks gave away, are the same."""
    rounds = {number: members for life in job.all_lives() for number, (members, _) in life.rounds.items()}
    given = Counter(tuple(c) for members in rounds.values() for c in members)
    wrong = [f"contribution {c} is in {times} rounds" for c, times in given.items() if times > 1]
    ends = [life.end for life in job.all_lives() if life.end is not None]
    if not ends:
        return wrong
    if unseen := rounds_unseen(job):
        return [*wrong, *([] if unseen <= 2 else [f"{unseen} rounds were recorded by nobody"])]
    return wrong + _weights_are_records(job, given, ends[0]["applied"]) + _nothing_is_missing(job, given, ends[0])


def rounds_unseen(job: Job) -> int:
    """Rounds in the weights that no life has in its diary: all who applied them were killed before they wrote it."""
    ends = [life.end["version"] for life in job.all_lives() if life.end is not None]
    seen = {number for life in job.all_lives() for number in life.rounds}
    return len(set(range(max(ends, default=0))) - seen)


def _weights_are_records(job: Job, given: Counter[Contribution], applied: list[list[int]]) -> list[str]:
    lives = {(life.rank, life.incarnation): life.life for life in job.all_lives()}
    expected: Counter[Contribution] = Counter()
    for rank, incarnation, step in given:
        if (rank, incarnation) not in lives:
            return [f"rank {rank} has no life of incarnation {incarnation}"]
        expected[rank, lives[rank, incarnation] - 1, (step - 1) % PLACES] += 1
    counted = {(rank, life, place): times for rank, life, place, times in applied}
    return [
        f"weights counted {counted.get(place, 0)} of {expected[place]} at {place}"
        for place in {*expected, *counted}
        if counted.get(place, 0) != expected[place]
    ]


def _nothing_is_missing(job: Job, given: Counter[Contribution], end: dict) -> list[str]:
    """A step that returned was applied or recorded as dropped; one that was under way may have arrived, too."""
    wrong = []
    for rank, lives in job.lives.items():
        least = most = 0
        for life in lives:
            taken = {step for r, i, step in given if (r, i) == (rank, life.incarnation)}
            least += sum(step not in taken for step in range(1, len(life.steps) + 1))
            most += sum(step not in taken for step in range(1, life.begun_steps + 1))
            if taken and max(taken) > life.begun_steps:
                wrong.append(f"rank {rank}, life {life.life} made no step {max(taken)}, which was applied")
        if not least <= end["dropped"][rank] <= most:
            wrong.append(
                f"rank {rank}: {least} to {most} steps are missing, {end['dropped'][rank]} recorded as dropped"
            )
    return wrong


def endings(job: Job, kills: int) -> list[str]:
    """The launcher came to a good end, and no rank ended but those that were killed."""
    wrong = [] if job.code == 0 else [f"the launcher ended with {job.code}"]
    ended = re.findall(r"outpace run: rank \d+ ended with (.+?)[;:,]", job.errors)
    others = [how for how in ended if how != "signal SIGKILL"]
    if others or len(ended) != kills:
        wrong.append(f"{kills} ranks were killed, and {len(ended)} ended before their time: {Counter(ended)}")
    unfinished = [rank for rank, lives in job.lives.items() if not lives or lives[-1].end is None]
    return wrong + [f"rank {rank} did not finish" for rank in unfinished]


def leftovers(job: Job) -> list[str]:
    """Processes, temporary files and shared memory of the job. The kernel may need a moment to take down the dead."""
    deadline = time.monotonic() + 2.0
    while (left := _left(job)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left


def _left(job: Job) -> list[str]:
    found = [f"process {pid}" for pid in _processes(job.directory)]
    found += [f"temporary {path.name}" for path in job.temporary.iterdir()]
    pids = {str(life.pid) for life in job.all_lives()} | {str(job.pid)}
    for path in Path("/dev/shm").iterdir():
        is_arena = "outpace" in path.name and not _processes(path)  # else it is another job's, which lives
        if is_arena or pids & set(re.split(r"\D+", path.name)):
            found.append(str(path))
    return found


def _processes(directory: Path) -> list[int]:
    """All that have a file of a directory open. Of a job's: its ranks inherit the launcher's standard output."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        if int(name) == os.getpid():
            continue
        try:
            files = [os.readlink(f"/proc/{name}/fd/{fd}") for fd in os.listdir(f"/proc/{name}/fd")]
        except OSError:
            continue
        if any(file.startswith(f"{directory}/") for file in files):
            found.append(int(name))
    return found
