"""Clients that have joined a replay server, and the place of their replay buffers; this file uses no network."""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from components.replay_buffers.federated import ClientSample, Route
from components.replay_buffers.invalid import InvalidExperience
from components.replay_server.layouts import AnyBuffer

NO_ROUTE: Route = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))


class BufferOwner(Protocol):
    """A client that keeps its own replay buffer, outside of the server."""

    async def draw(self, n: int, route: Route) -> tuple[ClientSample, str]:
        """Update priorities (float64) of items drawn earlier, if any are given; then draw `n` items, maybe none.

        Returns the items, and the reason for which priorities were refused; empty if they were not.
        """


@dataclass(slots=True)
class RemoteBuffer:
    """A replay buffer that its client keeps."""

    owner: BufferOwner
    admitted: int = 0
    """Entries of this client that the limiter has counted."""
    inserted_bytes: int = 0
    """Bytes of all entries that the client has inserted, as last reported."""
    asked: bool = False
    """True if items were requested from the client and have not arrived."""
    routes: list[Route] = field(default_factory=list)
    """Priorities to be sent to the client."""

    def take_route(self) -> Route:
        """Remove and return all priorities to be sent, the newest last."""
        if not self.routes:
            return NO_ROUTE
        routes, self.routes = [NO_ROUTE, *self.routes], []
        indices, generations, priorities = (np.concatenate(arrays) for arrays in zip(*routes, strict=True))
        return indices, generations, priorities


@dataclass(slots=True)
class ServerBuffer:
    """A replay buffer that the server keeps for a client, which may have left."""

    buffer: AnyBuffer
    admitted: int = 0
    """As for `RemoteBuffer`, like the next."""
    inserted_bytes: int = 0
    writer: int = 0
    """Number of the client object that inserted last."""
    number: int = -1
    """Serial number of its last chunk, so that no chunk is inserted twice; below 0 before the first."""

    def has(self, writer: int, number: int) -> bool:
        """Return whether that chunk was inserted before."""
        return 0 <= number <= self.number and writer == self.writer


def update_priorities(buffer: AnyBuffer, route: Route) -> str:
    """Update priorities of drawn items; return why they were refused, empty if they were not."""
    try:
        buffer.update(*route)
    except InvalidExperience as error:
        return str(error)
    return ""
