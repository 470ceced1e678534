"""What becomes of engines when a script simply ends. Owns the end of a process that never called `finish()`.

After a normal end the rank leaves the quorum, so that nobody takes it for dead. After an exception it does not: the
others then learn that it died.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import weakref

from outpace.engines.replicas import ReplicaEngine
from outpace.errors import OutpaceError
from outpace.observe import recorder

_open: weakref.WeakSet[ReplicaEngine] = weakref.WeakSet()


def watch(engine: ReplicaEngine) -> None:
    """Cares for this engine at the end of the process."""
    _open.add(engine)


def forget(engine: ReplicaEngine) -> None:
    """The engine was ended properly."""
    _open.discard(engine)


os.register_at_fork(after_in_child=_open.clear)  # a forked child that exits must not speak for its parent


@atexit.register
def end_all() -> None:
    """Leaves all rounds; runs at exit, also in processes that skip `atexit`."""
    failed = getattr(sys, "last_value", None) is not None
    for engine in list(_open):
        if not failed:
            with contextlib.suppress(OutpaceError):  # where the others cannot be told, there is nobody to tell it to
                engine.leave()
        engine.close()
        forget(engine)
    recorder.close_all()
