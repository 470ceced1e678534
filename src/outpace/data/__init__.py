"""Data that follows speed: samplers that all ranks draw from, and batches of equal cost."""

from outpace.data.balanced import LengthBalancedBatches
from outpace.data.shared import SharedBatchSampler, SharedSampler, SharedStream, SpeedShares

__all__ = ["LengthBalancedBatches", "SharedBatchSampler", "SharedSampler", "SharedStream", "SpeedShares"]
