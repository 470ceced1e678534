"""What is under test: the ledger, the shared tensors and the engine. Owns nothing; a mutant exchanges one of them."""

from __future__ import annotations

from typing import NamedTuple

from outpace.engines.virtual.training import SharedTensors
from outpace.protocol.ledger import Ledger
from tests.fuzz.lives import WatchedEngine


class System(NamedTuple):
    """The classes a run is made of."""

    ledger: type[Ledger] = Ledger
    tensors: type[SharedTensors] = SharedTensors
    engine: type[WatchedEngine] = WatchedEngine


SOUND = System()
