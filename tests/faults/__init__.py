"""Faults of real processes on one machine.

test_*.py   the quick part, in `make test`: what `tests/engine` does not show yet
soak        the long part, `make soak`: random kills, stops and interrupts for as long as one likes
mutants     `make mutants`: each protection taken out, and the test that must notice
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "engine"))  # whose ranks and checks serve here, too
