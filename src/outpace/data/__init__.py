"""Data that follows speed: samplers that all ranks draw from, and batches of equal cost."""

from outpace.data.shared import SharedBatchSampler, SharedSampler

__all__ = ["SharedBatchSampler", "SharedSampler"]
