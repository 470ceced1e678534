"""The soak: jobs under `outpace run` that are killed, stopped and interrupted at random instants, and looked into.

    plan        what a job is and how it is disturbed, drawn from the seed and its number
    forked      a launcher that forks its ranks instead of starting them anew, so that a restart takes no seconds
    rank        what each rank does: weights that count what was applied to them
    diary       what each life of a rank writes down, line by line, so that nothing is lost when it is killed
    job         one launcher, its ranks and their diaries, seen from outside
    injectors   kills and stops, each of which makes sure that it happened
    episode     one job from its start to its end, disturbed all along
    interrupts  jobs that are interrupted soon after they were started
    checks      exactly once, agreement, and what is left behind
    waits       what the faults cost the others, and how long a killed rank was missing
    tally       totals, and how they are printed

`python -m tests.faults.soak --help` says how to run it.
"""
