"""What a strategy is. Owns the interface; a strategy knows an engine only by `engines.base.Engine`."""

from __future__ import annotations

from abc import ABC, abstractmethod

from outpace.engines.base import Engine, Ticket, Work
from outpace.protocol.rules import Rules


class Strategy(ABC):
    """An algorithm, written once, that runs on every engine."""

    @abstractmethod
    def rules(self, world: int) -> Rules:
        """The rules of its rounds in a world of so many ranks. Raises `InvalidRules` for what cannot work."""

    @abstractmethod
    async def step(self, engine: Engine, work: Work) -> Ticket:
        """One rank's step: gives `work` away and brings the replica up to date."""
