"""The engine of one machine: contributions, results and the log lie in shared memory that every rank can read.

No lock is held across Python code anywhere: a rank that is stopped or killed at any instruction holds nobody up.
"""
