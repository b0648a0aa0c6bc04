"""Writing memories to files while they are inserted into and drawn from."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from components.checkpoints.snapshot import Snapshot


class Snapshots:
    """Has a thread write snapshots, one after the other; all of it belongs to one event loop, which goes on."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._writing: asyncio.Task[None] | None = None

    async def write(self, take: Callable[[], Snapshot], path: str | Path) -> None:
        """Write what `take` returns once its turn has come. What is begun is written, whoever gives up waiting for it.

        Raises:
            OSError: it cannot be written; what was there before stays.
        """
        async with self._turn:
            await self.written()  # two that write at a time would write into each other's file
            self._writing = asyncio.get_running_loop().create_task(asyncio.to_thread(take().write, path))
            await asyncio.shield(self._writing)

    async def written(self) -> None:
        """Wait for what is being written, whoever waited for it before."""
        if self._writing is not None:
            await asyncio.wait([self._writing])  # unlike `gather`, it does not break it off if it is broken off itself
