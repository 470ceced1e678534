"""Strategies: one short file for each family of algorithms, reading like the paper's pseudo-code."""

from outpace.strategies.base import Strategy
from outpace.strategies.eager import Eager
from outpace.strategies.registry import names, strategy, table

__all__ = ["Eager", "Strategy", "names", "strategy", "table"]
