"""Imbalance: who is slow, when, and by how much. For demonstrations and tests, on top of whatever a machine does."""

from outpace.imbalance.base import Imbalance
from outpace.imbalance.models import Balanced, RandomRanks
from outpace.imbalance.registry import imbalance, names

__all__ = ["Balanced", "Imbalance", "RandomRanks", "imbalance", "names"]
