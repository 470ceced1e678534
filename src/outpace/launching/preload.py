"""Imported once by the server that `spawn` forks ranks from: what every rank needs, paid for once.

torch imports its compiler when the first optimizer is made, which takes seconds. The server also dies with its
launcher, and every rank with the server: so none of them outlives a launcher that was killed.
"""

from __future__ import annotations

from contextlib import suppress

import networkx  # noqa: F401
import torch

import outpace
from outpace.launching.leash import die_with_parent

die_with_parent()
with suppress(ModuleNotFoundError):  # an extra
    import scipy.optimize  # noqa: F401
for name in outpace.__all__:
    getattr(outpace, name)  # imports what it is made of
torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.0)
