"""Imbalance: who is slow, when, and by how much. For demonstrations and tests, on top of whatever a machine does."""

from outpace.imbalance.base import Imbalance
from outpace.imbalance.interruptions import Bursts, Pauses
from outpace.imbalance.noise import ExponentialNoise, GammaNoise, LogNormalNoise, NormalNoise, ParetoNoise
from outpace.imbalance.ranks import Balanced, RandomRanks, ShiftingSkew, Skew, SlowRanks
from outpace.imbalance.registry import imbalance, names, table
from outpace.imbalance.workloads import Lengths, Rollouts

__all__ = [
    "Balanced",
    "Bursts",
    "ExponentialNoise",
    "GammaNoise",
    "Imbalance",
    "Lengths",
    "LogNormalNoise",
    "NormalNoise",
    "ParetoNoise",
    "Pauses",
    "RandomRanks",
    "Rollouts",
    "ShiftingSkew",
    "Skew",
    "SlowRanks",
    "imbalance",
    "names",
    "table",
]
