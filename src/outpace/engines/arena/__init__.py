"""The engine of one machine: contributions, results and the log lie in shared memory that every rank can read.

    engine       what strategies call: begin, result, catch_up, synchronize, finish
    reduction    sums the rows of a sealed round into its slot, by whoever is there
    snapshot     weights and optimizer state for ranks that lag, join or restart
    rendezvous   how ranks find one arena
    arena        the memory: layout, header, holds
    log, bell, life    ordered appends; waiting without CPU; who lives

No lock is held across Python code anywhere: a rank that is stopped or killed at any instruction holds nobody up.
"""
