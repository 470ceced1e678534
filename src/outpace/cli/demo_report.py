"""The demo's report: a table for people, a document for scripts. Owns their wording; computes nothing but ratios."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from outpace.cli.comparison import ComparisonBase, replay
from outpace.workloads.hyperplane import Hyperplane
from outpace.workloads.systems import DDP
from outpace.workloads.trial import Outcome, Settings

SYSTEMS = (DDP, "allreduce", "eager-majority", "eager-solo")  #: what is compared unless one asks for others
TITLES = {DDP: "torch DDP (Gloo)"}  #: systems whose name does not say what they are


@dataclass
class Comparison(ComparisonBase[Settings, Outcome]):
    """Systems that trained on this machine."""

    def speedup(self, outcome: Outcome) -> float | None:
        """How many times faster than DDP; None if DDP did not run."""
        ddp = next((o for o in self.outcomes if o.system == DDP), None)
        return None if ddp is None else ddp.seconds / outcome.seconds

    def command(self) -> str:
        """What repeats this run."""
        others = {} if tuple(self.systems) == SYSTEMS else {"strategies": ",".join(self.systems)}
        return replay("demo", self.settings, Settings(), **others)


def title(system: str) -> str:
    """What people read for a system's name."""
    return TITLES.get(system, system)


def to_json(comparison: Comparison) -> dict[str, Any]:
    """Everything that was measured, in plain values."""
    task = Hyperplane(comparison.settings.seed)
    return {
        **comparison.header(),
        "untrained_loss": task.score(task.model()).loss,
        "noise_floor": task.noise_floor(),
        "systems": [_system_json(comparison, outcome) for outcome in comparison.outcomes],
    }


def _system_json(comparison: Comparison, outcome: Outcome) -> dict[str, Any]:
    return {
        "system": outcome.system,
        "seconds": outcome.seconds,
        "speedup_over_ddp": comparison.speedup(outcome),
        "final_loss": outcome.final_loss,
        "waited_s": outcome.waited_s,
        "late_share": outcome.late_share,
        "dropped": outcome.dropped,
        "ranks": [
            {
                "rank": rank.rank,
                "seconds": rank.ended_s - rank.began_s,
                "waited_s": rank.waited_s,
                "final_loss": rank.final_loss,
            }
            for rank in outcome.ranks
        ],
    }


def print_report(comparison: Comparison) -> None:
    """The table and what its columns mean, on standard output."""
    comparison.print_report("systems", lambda _: _table(comparison), lambda: _notes(comparison))


def _table(comparison: Comparison) -> Table:
    s = comparison.settings
    table = Table(title=f"{s.ranks} ranks, {s.steps} steps each, imbalance {s.imbalance}", title_style="bold")
    table.add_column("system")
    for name in ("time", "speed-up", "final loss", "waited", "late"):
        table.add_column(name, justify="right")
    best = max(comparison.speedup(o) or 0.0 for o in comparison.outcomes)
    for outcome in comparison.outcomes:
        gain = comparison.speedup(outcome)
        table.add_row(
            title(outcome.system),
            f"{outcome.seconds:.1f} s",
            "-" if gain is None else f"{gain:.2f}x",
            f"{outcome.final_loss:.3f}",
            f"{outcome.waited_s:.1f} s",
            f"{outcome.late_share:.0%}",
            style="bold green" if gain == best and best > 1 else None,
        )
    return table


def _notes(comparison: Comparison) -> dict[str, str]:
    s, task = comparison.settings, Hyperplane(comparison.settings.seed)
    dropped = sum(o.dropped for o in comparison.outcomes)
    return {
        "computing": "is emulated by a sleep, because the ranks share this machine's cores "
        f"({s.ranks} ranks, {os.cpu_count()} cores). "
        f"A step makes its real data and forward pass, sleeps until {s.compute_ms:g} ms have passed (longer if it is "
        "this rank's turn to be slow), then runs its real backward pass and communication.",
        "time": "training only, without starting processes, until the last rank was done",
        "final loss": f"on held-out points: {task.score(task.model()).loss:.1f} before training, "
        f"{task.noise_floor():.3f} with the hidden hyperplane itself",
        "waited": "from a rank's own gradients being ready until its step was done, and for others at the end, "
        "mean over ranks",
        "late": "share of contributions taken in by a later round than the one they were computed for; "
        f"{dropped or 'none'} dropped",
    }
