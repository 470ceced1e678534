"""Shared tensors that are broken in one place."""

from __future__ import annotations

from outpace.engines.virtual.memory import SharedTensors
from outpace.interface import Result
from outpace.protocol.events import Done, Event, Refuse
from outpace.protocol.round import Round


class NobodyRefused(SharedTensors):
    """A contribution that is not finite spoils the round of all."""

    def reduce(self, sealed: Round) -> Event:
        event = super().reduce(sealed)
        if not isinstance(event, Refuse):
            return event
        slot, attempt = sealed.slot, sealed.attempt
        self._slot_metas[slot] = next(self.row_metas[c.rank, c.row] for c in sealed.contributions)
        return Done(0, sealed.number, attempt, slot, void=True)


class AllPresent(SharedTensors):
    """A parameter that nobody had a gradient for is stepped with zeros."""

    def result(self, record: Round) -> Result:
        result = super().result(record)
        return result._replace(present=b"\1" * len(result.present))


class WrongClip(SharedTensors):
    """A result is clipped as if it were twice as long."""

    def reduce(self, sealed: Round) -> Event:
        event = super().reduce(sealed)
        return event._replace(clip=event.clip / 2) if isinstance(event, Done) and event.clip < 1 else event


class ClipForgotten(SharedTensors):
    """A result is applied without its clip factor."""

    def result(self, record: Round) -> Result:
        return super().result(record)._replace(round=record._replace(clip=1.0))
