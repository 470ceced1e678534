"""Faults of real processes on one machine.

test_*.py   the quick part, in `make test`: what `tests/engine` does not show yet
soak        the long part, `make soak`: random kills, stops and interrupts for as long as one likes
mutants     `make mutants`: each protection taken out, and the test that must notice
"""
