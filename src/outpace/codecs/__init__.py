"""Codecs: how a round's sum is made cheaper to send. One short file for each, reading like its paper's pseudo-code."""

from outpace.codecs.base import Codec
from outpace.codecs.registry import codec, names
from outpace.codecs.seeds import contribution_seed

__all__ = ["Codec", "codec", "contribution_seed", "names"]
