"""The protocol: pure decisions. Uses no clock, socket, file or thread, and no randomness but from a seed.

Times reach it only as numbers inside events, so all ranks that fold the same log take the same decisions.
"""
