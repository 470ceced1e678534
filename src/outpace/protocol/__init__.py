"""The protocol: pure decisions. No clock, socket, file, thread or random source is ever used here.

Times reach it only as numbers inside events; whoever folds the same log takes the same decisions.
"""
