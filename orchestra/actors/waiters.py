"""Waiters: senders that wait for their turn, in the order of their arrival."""

import asyncio
from collections import OrderedDict
from typing import TypeVar

T = TypeVar("T")


class Waiters(OrderedDict[asyncio.Future[None], T]):
    """The entries that wait to be sent, oldest first, by the futures of their senders."""

    async def wait(self, turn: asyncio.Future[None]) -> None:
        """Wait for `turn`, one of the keys. A cancelled wait removes its entry at once."""
        try:
            await turn
        except asyncio.CancelledError:
            self.pop(turn, None)
            if not self:
                self.clear()  # an emptied dict keeps its memory
            raise
