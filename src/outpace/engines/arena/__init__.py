"""The engine of one machine: contributions, results and the log lie in shared memory that every rank can read.

    open         puts a rank's engine together
    log          one rank's ledger, folded from records that the kernel orders; waiting
    memory       rows, results, published weights: what lies in the arena, and who uses which slot
    reduction    sums the rows of a sealed round into its slot, by whoever is there
    snapshot     weights and optimizer state for ranks that lag, join or restart
    rendezvous   how ranks find one arena
    arena        its files; layout: where everything lies in them
    kernel       memory barriers, waiting without CPU, who lives

No lock is held across Python code anywhere: a rank that is stopped or killed at any instruction holds nobody up.
"""
