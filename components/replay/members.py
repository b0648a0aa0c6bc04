"""Who has joined a replay server, and who has the memory of each; it knows nothing of a network."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from components.replay.layout import AnyLayout, Memory
from components.replay.two_phase import Route, Share


class Holder(Protocol):
    """Has a client's memory."""

    async def share(self, n: int) -> Share:
        """Draw `n` items."""

    async def update(self, route: Route) -> Share | None:
        """Set priorities of items that were drawn; return how much is held then, unless that was told since."""


class LocalHolder:
    """A memory that the server keeps for a client."""

    def __init__(self, layout: AnyLayout, memory: Memory, rng: np.random.Generator) -> None:
        self.memory = memory
        self._layout, self._rng = layout, rng

    async def share(self, n: int) -> Share:
        return self._layout.share(self.memory, n, self._rng)

    async def update(self, route: Route) -> Share:
        self.memory.update(*route)
        return await self.share(0)


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

    holder: Holder
    admitted: int = 0
    """As for `Kept`, like the next three."""
    asked: bool = False
    """Whether it was asked to push, and has not yet."""
    inserted_bytes: int = 0
    writer: int = 0
    number: int = -1

    def has(self, writer: int, number: int) -> bool:
        """Whether it has sent that chunk before."""
        return 0 <= number <= self.number and writer == self.writer
