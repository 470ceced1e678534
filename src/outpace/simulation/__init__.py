"""Simulation: scenarios, and running strategies through them in simulated time."""

from outpace.simulation.scenario import BALANCED, BOTH, DATA, SHARED, SPLIT, Scenario
from outpace.simulation.timing import (
    BASELINE,
    Standing,
    Timing,
    full_round_s,
    ideal_throughput,
    mean_compute_s,
    simulate_timing,
)
from outpace.simulation.training import LossPoint, ScorePoint, Training, simulate_training

__all__ = [
    "BALANCED",
    "BASELINE",
    "BOTH",
    "DATA",
    "SHARED",
    "SPLIT",
    "LossPoint",
    "Scenario",
    "ScorePoint",
    "Standing",
    "Timing",
    "Training",
    "full_round_s",
    "ideal_throughput",
    "mean_compute_s",
    "simulate_timing",
    "simulate_training",
]
