"""Open MPI's allreduce, for side_by_side.py: `mpirun -np 8 python mpi_allreduce.py ELEMENTS TIMES`."""

import sys
import time

import numpy
from mpi4py import MPI

elements, times = int(sys.argv[1]), int(sys.argv[2])
world = MPI.COMM_WORLD
mine = numpy.ones(elements, dtype=numpy.float32)
summed = numpy.empty_like(mine)
for _ in range(3):
    world.Allreduce(mine, summed)
world.Barrier()
began = time.perf_counter()
for _ in range(times):
    world.Allreduce(mine, summed)
taken = (time.perf_counter() - began) / times
assert summed[-1] == world.size
if world.rank == 0:
    print(taken)
