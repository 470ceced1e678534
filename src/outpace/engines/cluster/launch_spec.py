"""What a rank tells the agent that it starts. Plain values, as JSON through a pipe: nothing is unpickled."""

from __future__ import annotations

import json
from typing import IO, Any, NamedTuple


class LaunchSpec(NamedTuple):
    """All that an agent needs to know. The job's key is in the arena."""

    name: str  #: of the meeting
    host: int
    layout: dict[str, int]
    rules: dict[str, Any]
    chunks: list[tuple[str, int, int]]
    tensors: int
    has_buffers: bool
    max_grad_norm: float | None
    timeout_s: float
    fds: tuple[int, ...]

    def written(self) -> bytes:
        """For the pipe."""
        return json.dumps(self._asdict()).encode()

    @classmethod
    def read(cls, pipe: IO[bytes]) -> LaunchSpec:
        """The inverse of `written`."""
        return cls(**json.loads(pipe.read()))


def cluster_of(name: str) -> str:
    """Where the agents of a job meet in the store."""
    return f"outpace/{name}/cluster"
