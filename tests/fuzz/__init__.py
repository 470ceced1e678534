"""The fuzz: random schedules with real tiny models on the virtual engine, under checkers, from one seed a run.

    plan        what a run is, drawn from its seed: ranks, rules, network, models and faults
    models      tiny models with real gradients, and where these go wrong on purpose
    lives       one incarnation of a rank, from its join to its end
    faults      pauses, crashes, restarts and the rest, while a run lasts
    run         one run: a safety phase with faults, then a liveness phase without
    watch       tells the checkers what happens, and collects what they say
    checkers    one promise a file
    trace       the last events, with one column per rank
    campaign    many runs, their totals, and the seeds that failed
    mutants     systems that are broken on purpose: each must be caught

`python -m tests.fuzz --help` says how to run it.
"""
