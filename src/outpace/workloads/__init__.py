"""Workloads: built-in training tasks, each with real data and a metric to compare models by."""

from outpace.workloads.base import Metric, Score, Workload
from outpace.workloads.code import Code
from outpace.workloads.digits import Digits
from outpace.workloads.hyperplane import Hyperplane
from outpace.workloads.registry import names, table, workload
from outpace.workloads.rollouts import Rollouts
from outpace.workloads.sequences import Sequences
from outpace.workloads.vision import Vision

__all__ = [
    "Code",
    "Digits",
    "Hyperplane",
    "Metric",
    "Rollouts",
    "Score",
    "Sequences",
    "Vision",
    "Workload",
    "names",
    "table",
    "workload",
]
