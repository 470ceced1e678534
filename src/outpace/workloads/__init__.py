"""Workloads: built-in training tasks, and the loop that trains one under any system on real ranks."""

from outpace.workloads.base import Metric, Score, Workload
from outpace.workloads.digits import Digits
from outpace.workloads.hyperplane import Hyperplane
from outpace.workloads.registry import names, workload
from outpace.workloads.trial import Outcome, RankOutcome, Settings, run_trial

__all__ = [
    "Digits",
    "Hyperplane",
    "Metric",
    "Outcome",
    "RankOutcome",
    "Score",
    "Settings",
    "Workload",
    "names",
    "run_trial",
    "workload",
]
