"""What is under test: ledger, shared tensors, engine, replay. Owns nothing; a mutant exchanges one of them."""

from __future__ import annotations

from typing import NamedTuple

from outpace.engines.virtual.memory import SharedTensors
from outpace.protocol.ledger import Ledger
from tests.fuzz.lives import WatchedEngine, WatchedReplay


class System(NamedTuple):
    """The classes a run is made of."""

    ledger: type[Ledger] = Ledger
    tensors: type[SharedTensors] = SharedTensors
    engine: type[WatchedEngine] = WatchedEngine
    replay: type[WatchedReplay] = WatchedReplay


SOUND = System()
