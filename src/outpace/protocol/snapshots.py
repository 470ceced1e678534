"""Where snapshots lie and who writes one. Owns the buffers' claims; knows nothing of what a snapshot contains."""

from __future__ import annotations

from typing import Any, NamedTuple

_NO_RANK = -1  # whoever copies a snapshot from another host has no claim
_NOBODY = -1  # no incarnation: a claim that can be given up, but not completed


class SnapshotPlace(NamedTuple):
    """A complete snapshot: where, of which version, and the log position whose ledger it carries."""

    buffer: int
    version: int
    position: int


class Snapshots:
    """One buffer for the latest snapshot, and one for each rank that may be stopped while writing one."""

    def __init__(self, world: int) -> None:
        self.buffers = world + 1
        self.latest: SnapshotPlace | None = None
        self.claims: dict[int, tuple[int, int]] = {}  # buffer -> (rank, incarnation) writing it

    def free(self, buffer: int, rank: int) -> bool:
        """Whether the buffer neither holds the latest snapshot nor is being written by another rank."""
        owner = self.claims.get(buffer)
        return (owner is None or owner[0] == rank) and (self.latest is None or self.latest.buffer != buffer)

    def free_buffer(self, rank: int) -> int:
        """A buffer this rank may claim. There always is one, because a rank has at most one claim."""
        return next(buffer for buffer in range(self.buffers) if self.free(buffer, rank))

    def claim(self, buffer: int, rank: int, incarnation: int) -> bool:
        """Gives the buffer to the rank, if free. A rank that claims again has given up what it wrote before."""
        if not self.free(buffer, rank):
            return False
        self.release(rank)
        self.claims[buffer] = (rank, incarnation)
        return True

    def complete(self, place: SnapshotPlace, rank: int, incarnation: int, is_wanted: bool = False) -> bool:
        """Makes the claimed buffer the latest snapshot, unless one of that version is there or a newer one.

        The first of a version stays: two ranks may have begun to write what all start from, and their weights differ.
        One that another host waits for takes its place, and one of weights that were loaded before anybody trained.
        """
        if self.claims.get(place.buffer) != (rank, incarnation):
            return False
        del self.claims[place.buffer]
        if self.latest is not None and place.version < self.latest.version + (not is_wanted):
            return False
        self.latest = place
        return True

    def receive(self, place: SnapshotPlace) -> None:
        """Another host's snapshot was copied here, into a buffer that is free for it."""
        self.latest = place._replace(buffer=self.free_buffer(_NO_RANK))

    def begin_anew(self) -> None:
        """Another numbering begins: what was being written is of the old one. Its buffers stay with their writers."""
        self.latest = None
        self.claims = {buffer: (rank, _NOBODY) for buffer, (rank, _) in self.claims.items()}

    def release(self, rank: int) -> None:
        """Ends the rank's claim: it is gone, or claims anew."""
        self.claims = {b: owner for b, owner in self.claims.items() if owner[0] != rank}

    def to_state(self) -> dict[str, Any]:
        """Plain values for a snapshot."""
        return {"latest": self.latest, "claims": [[b, *owner] for b, owner in sorted(self.claims.items())]}

    @classmethod
    def from_state(cls, world: int, state: dict[str, Any]) -> Snapshots:
        """The inverse of `to_state`."""
        snapshots = cls(world)
        snapshots.latest = None if state["latest"] is None else SnapshotPlace(*state["latest"])
        snapshots.claims = {b: (rank, incarnation) for b, rank, incarnation in state["claims"]}
        return snapshots
