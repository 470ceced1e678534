"""The virtual engine: simulated time, one process, thousands of ranks, deterministic from its inputs.

clock       time, and coroutines that sleep on it
network     what communication costs
agents      what is between hosts: the store's queue, and those of the links
world       one log and ledger for all ranks, and what follows from its events
log         one rank's clock: how time passes while it computes, says something or waits
memory      what ranks share, with real tensors or with none
threads     ranks that run a user's own plain loop
"""
