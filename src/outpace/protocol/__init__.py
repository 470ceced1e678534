"""The protocol: pure decisions. No clock, socket, file or thread is used here, and nothing is drawn but from a seed.

Times reach it only as numbers inside events; whoever folds the same log takes the same decisions.
"""
