"""The package with one protection taken out at a time: each must make its test fail. `python -m tests.faults.mutants`.

Nothing in the package knows of it: `site/sitecustomize.py` changes a module right after it was imported, in every
process of a test, the ranks among them. Imports nothing of outpace, as that would come before the change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

NAME = "OUTPACE_TEST_MUTANT"  #: in the environment: which one
CONTROL = "control"  #: changes nothing but what all do
SHORT_TIMEOUT_S = 20.0  #: a wait without end is an error sooner than in the tests themselves


@dataclass(frozen=True)
class Mutant:
    """One protection less."""

    protection: str
    module: str  #: what is changed
    change: Callable[[Any], None]
    test: str  #: which must fail


def _holds_are_not_looked_at(module: Any) -> None:
    module.Holds.others_use = lambda *_: False


def _slots_are_not_held(module: Any) -> None:
    module.Holds.take = lambda *_: None


def _log_is_not_read_before_a_copy(module: Any) -> None:
    begin = module.Reduction.__init__

    def begin_trusting(self: Any, memory: Any, sums: Any, wanted: Any, faults: Any) -> None:
        begin(self, memory, sums, lambda sealed: True, faults)

    module.Reduction.__init__ = begin_trusting


def _nobody_helps(module: Any) -> None:
    work = module.Helper._work
    module.Helper._work = lambda self, sealed, helping: work(self, sealed, False)


def _lives_are_not_probed(module: Any) -> None:
    module.ArenaLog.report_deaths = lambda self: False


def _nobody_writes_a_snapshot_out_of_turn(module: Any) -> None:
    async def nobody(self: Any) -> bool:
        return False

    module.Replay.write_overdue_snapshot = nobody


def _below_quorum_is_not_noticed(module: Any) -> None:
    module.ArenaLog.check = lambda self: None


def _anybody_may_be_a_rank(module: Any) -> None:
    module.Life.take = lambda self, rank: True


def _what_is_left_of_a_rank_lives_on(module: Any) -> None:
    def end(self: Any) -> tuple[int, str]:
        code = self._process.wait()
        return code, self.tail.end(code)

    module.Child.end = end


def _nobody_is_tied_to_the_launcher(module: Any) -> None:
    module.die_with_parent = lambda parent=None: None


def _numbers_are_not_looked_at(module: Any) -> None:
    module.math = SimpleNamespace(isfinite=lambda value: True)


def _training_writes_its_own_trace(module: Any) -> None:
    module.TraceWriter.put = lambda self, line: self._append([line])


def _without(verb: str, lane_verb: str) -> Callable[[Any], None]:
    """A device's copies in one direction, without one of the waits of their stream."""

    def change(module: Any) -> None:
        lane, copies = module.Lane, getattr(module.StreamStaging, verb)
        waits = getattr(lane, lane_verb)

        def copies_unordered(self: Any, *arguments: Any) -> Any:
            setattr(lane, lane_verb, lambda self: None)
            try:
                return copies(self, *arguments)
            finally:
                setattr(lane, lane_verb, waits)

        setattr(module.StreamStaging, verb, copies_unordered)

    return change


def _results_are_let_go_of_unread(module: Any) -> None:
    module.StreamStaging.until_read = lambda self: self._reading.clear()


def _buffer_is_not_read_yet(module: Any) -> None:
    up = module.StreamStaging.up

    def hasty(self: Any, values: Any, like: Any) -> Any:
        self._reading.clear()
        return up(self, values, like)

    module.StreamStaging.up = hasty


_FAULTS = "tests/engine/test_faults.py"
_STAGING = "tests/device/test_staging.py"
_LOCAL = "outpace.engines.arena"

MUTANTS = {
    "holds-unseen": Mutant(
        "a slot that a stopped rank reads or writes is not used again",
        f"{_LOCAL}.memory",
        _holds_are_not_looked_at,
        f"{_FAULTS}::test_a_stopped_rank_holds_nobody_up_and_loses_nothing[applying-eager-solo]",
    ),
    "slots-not-held": Mutant(
        "a rank says which slot it uses",
        f"{_LOCAL}.memory",
        _slots_are_not_held,
        f"{_FAULTS}::test_a_stopped_rank_holds_nobody_up_and_loses_nothing[applying-eager-majority]",
    ),
    "blind-copy": Mutant(
        "the log is read again before a chunk is copied",
        f"{_LOCAL}.memory",
        _log_is_not_read_before_a_copy,
        "tests/engine/test_sleepers.py",
    ),
    "no-help": Mutant(
        "others do the chunks of a reducer that is stopped",
        f"{_LOCAL}.memory",
        _nobody_helps,
        f"{_FAULTS}::test_a_stopped_rank_holds_nobody_up_and_loses_nothing[reducing-eager-majority]",
    ),
    "no-probe": Mutant(
        "a rank that waits looks who lives",
        f"{_LOCAL}.log",
        _lives_are_not_probed,
        f"{_FAULTS}::test_the_others_go_on_and_agree_after_a_rank_is_killed[applying-eager-majority]",
    ),
    "in-turn-only": Mutant(
        "whoever waits writes a snapshot whose writer is lost",
        "outpace.engines.replay",
        _nobody_writes_a_snapshot_out_of_turn,
        "tests/engine/test_features.py::test_a_snapshot_whose_writers_were_lost_is_written_by_whoever_waits",
    ),
    "no-min-ranks": Mutant(
        "too few ranks end the run",
        f"{_LOCAL}.log",
        _below_quorum_is_not_noticed,
        "tests/faults/test_lost_ranks.py::test_one_more_ends_the_run_on_all_that_are_left_with_the_reason",
    ),
    "two-of-a-rank": Mutant(
        "a rank is refused while another process of it lives",
        f"{_LOCAL}.kernel",
        _anybody_may_be_a_rank,
        "tests/engine/test_run.py::test_a_rank_is_refused_while_another_process_of_the_same_rank_is_only_stopped",
    ),
    "no-fence": Mutant(
        "what is left of a rank is killed before its replacement starts",
        "outpace.launching.child",
        _what_is_left_of_a_rank_lives_on,
        "tests/engine/test_run.py::test_what_could_still_wake_up_of_a_dead_rank_is_killed_before_its_replacement_is_"
        "started",
    ),
    "no-leash": Mutant(
        "ranks end with their launcher",
        "outpace.launching.leash",
        _nobody_is_tied_to_the_launcher,
        "tests/engine/test_launch.py::test_no_rank_survives_a_killed_launcher",
    ),
    "not-finite": Mutant(
        "what is not finite is refused",
        f"{_LOCAL}.memory",
        _numbers_are_not_looked_at,
        "tests/faults/test_numbers_that_are_not.py",
    ),
    "down-unfilled": Mutant(
        "a copy down waits until its buffer is filled",
        "outpace.replica.staging",
        _without("down", "_wait_for_compute"),
        f"{_STAGING}::test_a_result_is_read_before_it_may_be_overwritten[registered]",
    ),
    "down-unlanded": Mutant(
        "a contribution has arrived only when its copy down has landed",
        "outpace.replica.staging",
        _without("landed", "let_host_wait"),
        f"{_STAGING}::test_a_result_is_read_before_it_may_be_overwritten[registered]",
    ),
    "up-too-early": Mutant(
        "a copy up waits until nobody reads its buffer",
        "outpace.replica.staging",
        _without("up", "_wait_for_compute"),
        f"{_STAGING}::test_a_result_does_not_overwrite_what_the_step_before_still_reads",
    ),
    "up-unread": Mutant(
        "the optimizer's step waits for the copy up",
        "outpace.replica.staging",
        _without("up", "let_compute_wait"),
        f"{_STAGING}::test_a_step_reads_the_result_and_not_what_this_rank_gave",
    ),
    "result-unread": Mutant(
        "a result is held until the device has read it",
        "outpace.replica.staging",
        _results_are_let_go_of_unread,
        f"{_STAGING}::test_a_result_is_read_before_it_may_be_overwritten[registered]",
    ),
    "buffer-unread": Mutant(
        "a pinned buffer is filled again only when the device has read it",
        "outpace.replica.staging",
        _buffer_is_not_read_yet,
        f"{_STAGING}::test_two_results_in_a_row_do_not_share_a_buffer_too_early",
    ),
    "own-trace": Mutant(
        "a trace is written beside training",
        "outpace.observe.recorder",
        _training_writes_its_own_trace,
        "tests/faults/test_disks.py::test_training_goes_on_when_every_write_fails",
    ),
}


def changes_of(name: str) -> dict[str, Callable[[Any], None]]:
    """By module."""
    changes = {"tests.support.ranks": _waits_are_short}
    return changes if name == CONTROL else {**changes, MUTANTS[name].module: MUTANTS[name].change}


def _waits_are_short(module: Any) -> None:
    """Of the tests' own ranks."""
    module.TIMEOUT_S = SHORT_TIMEOUT_S
