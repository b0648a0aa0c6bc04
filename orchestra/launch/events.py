"""The events of a launcher: its reports on its slots, in order, until it has stopped."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from orchestra.launch.protocol import HostEvent, SlotState

REASON = "orchestra: "
"""Begins a line in which an agent says why it has not joined yet."""


class HostEvents:
    """Takes events from a launcher, and yields them to the head.

    Args:
        where: returns the engine's description of the host of a slot.
    """

    def __init__(self, where: Callable[[int], str]) -> None:
        self._where = where
        self._queue: asyncio.Queue[HostEvent | None] = asyncio.Queue()
        self._muted = False

    def tell(
        self, slot: int, state: SlotState, reason: str = "", code: int | None = None, *, again: bool = True
    ) -> None:
        """Add an event. The parameters are the fields of `HostEvent`."""
        if not self._muted:
            self._queue.put_nowait(HostEvent(slot, state, self._where(slot), reason, code, again))

    def failed(self, slot: int, logger: Any, task: "asyncio.Task[Any]") -> None:
        """Report the error of a task of the launcher, if it has one: the run would wait for the slot otherwise."""
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the launcher failed", slot=slot, exc_info=error)
            self.tell(slot, "ended", f"the launcher failed: {error!r}", again=False)

    def mute(self) -> None:
        """Drop all further events: the launcher ends the agents itself."""
        self._muted = True

    def close(self) -> None:
        """End `follow`."""
        self._queue.put_nowait(None)

    async def follow(self) -> AsyncIterator[HostEvent]:
        """Yield the events until `close`."""
        while (event := await self._queue.get()) is not None:
            yield event
