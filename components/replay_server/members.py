"""Who has joined a replay server, and who has the memory of each; it knows nothing of a network."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from components.replay_buffers.federated import ClientSample, Route
from components.replay_buffers.invalid import InvalidExperience
from components.replay_server.bounded_queue import Full
from components.replay_server.layouts import AnyLayout, Memory


class Holder(Protocol):
    """Has a client's memory, elsewhere."""

    async def share(self, n: int, route: Route | None = None) -> tuple[ClientSample, str]:
        """Set priorities of items that were drawn, if any are given; then draw `n` items, which may be none.

        Returns the items, and why the priorities were refused; empty if they were not.
        """


class LocalHolder:
    """A memory that the server keeps for a client."""

    def __init__(self, layout: AnyLayout, memory: Memory, rng: np.random.Generator) -> None:
        self.memory = memory
        self._layout, self._rng = layout, rng

    def update(self, route: Route) -> str:
        """Set priorities of items that were drawn; return why they were refused, empty if they were not."""
        try:
            self.memory.update(*route)
        except InvalidExperience as error:
            return str(error)
        return ""

    def share(self, n: int) -> ClientSample:
        """Draw `n` items."""
        return self._layout.share(self.memory, n, self._rng)


@dataclass(slots=True)
class Kept:
    """A memory that is kept here, and what is known of the client that it belongs to."""

    memory: Memory
    admitted: int = 0
    """Entries that the limiter has counted for it."""
    inserted_bytes: int = 0
    """Bytes of all entries that it has inserted."""
    writer: int = 0
    """Which object inserted last, and"""
    number: int = -1
    """which of its chunks, so that none is inserted twice. No chunk yet where it is below 0."""


@dataclass(slots=True)
class Member:
    """A client that has joined, or has left its memory here."""

    holder: Holder | LocalHolder
    admitted: int = 0
    """As for `Kept`, like the next three."""
    asked: bool = False
    """Whether it was asked to push, and has not yet."""
    inserted_bytes: int = 0
    writer: int = 0
    number: int = -1
    routes: list[Route] = field(default_factory=list)
    """Priorities that are on their way to it."""

    def take_route(self) -> Route | None:
        """Return all priorities that are on their way, the newest last; they are no more."""
        routes, self.routes = self.routes, []
        if len(routes) < 2:
            return routes[0] if routes else None
        indices, generations, priorities = (np.concatenate(arrays) for arrays in zip(*routes, strict=True))
        return indices, generations, priorities

    def has(self, writer: int, number: int) -> bool:
        """Whether it has sent that chunk before."""
        return 0 <= number <= self.number and writer == self.writer

    @property
    def kept(self) -> Kept | None:
        """What a server keeps of it; None if it has its memory itself."""
        if not isinstance(self.holder, LocalHolder):
            return None
        return Kept(self.holder.memory, self.admitted, self.inserted_bytes, self.writer, self.number)


def new_memory(layout: AnyLayout, folder: str | Path | None) -> Memory:
    """Return an empty memory for a client, on the disk of `folder` if one is given.

    Raises:
        Full: there is no room for it there.
    """
    try:
        return layout.memory(folder)
    except OSError as error:
        raise Full(f"folder: expected room for the memory of one more client, got {error}") from error
