"""What a replay server does in its thread: hears its clients, writes their lines, saves what it keeps."""

import asyncio
import secrets
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from components.replay_buffers.federated import UnionStatistics
from components.replay_buffers.invalid import InvalidExperience
from components.replay_server.coordinator import Exchange
from components.replay_server.layouts import AnyLayout
from components.replay_server.loop_thread import Background, first_of
from components.replay_server.protocol import DESK
from components.replay_server.publications import Data, Publications
from components.replay_server.saved_buffers import KeptMemories
from components.replay_server.server_actor import Desk
from components.replay_server.snapshots import Snapshots
from orchestra import Node, freeze, log


@dataclass(frozen=True, slots=True)
class ServerStatistics:
    """How a server is doing."""

    clients: dict[str, int]
    """Who has joined, and how many entries each holds, as far as it has told."""
    left: tuple[str, ...]
    """Those of them that have left, and whose memory the server keeps."""
    union: UnionStatistics
    """What was pushed and drawn. Where the server keeps the memories, nothing of that travelled."""
    received_bytes: int
    """Bytes of entries, or of items that were drawn, that came from clients."""
    inserted_bytes: int
    """Bytes of all entries that clients have inserted: what would have come had each been sent."""
    published: int
    """Publications."""
    dropped_publications: int
    """Those that had to make room for newer ones, counted for each subscriber."""
    refused_publications: int
    """Those that were refused since a subscriber had no room."""
    refused_samples: int
    """Batches that were refused since too many were waited for."""
    lost_updates: int
    """Priorities of items whose client had left."""
    log_lines: int
    """Lines that clients have pushed to the log file."""
    saved_times: int
    """How often what is kept here was saved."""
    failed_saves: int
    """How often that failed when it was due."""

    @property
    def saved(self) -> float:
        """The share of the bandwidth that two-phase sampling saved by sending what is drawn, not what is inserted.

        Negative where more is drawn than inserted; 0 where nothing was inserted yet.
        """
        return 1.0 - self.received_bytes / self.inserted_bytes if self.inserted_bytes else 0.0


class Host:
    """A server's side of the conversation with its clients. All of it belongs to one event loop.

    Args:
        layout: what is kept.
        exchange: the memories.
        publications: what is published.
        lines: where clients' log lines go; None refuses them.
        save_path: where memories that are kept here are saved when it ends; None nowhere.
        save_every: and how often before, in seconds; None never.
    """

    def __init__(
        self,
        layout: AnyLayout,
        exchange: Exchange,
        publications: Publications,
        lines: TextIO | None = None,
        save_path: Path | None = None,
        save_every: float | None = None,
    ) -> None:
        self.layout, self.exchange, self.publications = layout, exchange, publications
        self.received_bytes = 0
        """Bytes that clients have pushed which keep their memories."""
        self.unsaved: OSError | None = None
        """Why what is kept here could not be saved when it ended."""
        self._lines, self._save_path, self._save_every = lines, save_path, save_every
        self._n_lines = self._n_saves = self._n_failed = 0
        self._snapshots = Snapshots()
        self._log = log.get(actor="replay")

    def spawn(self, node: Node) -> None:
        """Begin to hear clients on a node that is open."""
        node.spawn(DESK, Desk, self, node)

    async def live(self, background: Background, listen: str, secret: bytes) -> None:
        """Take back what was saved, and hear clients, until it is closed; then save.

        Raises:
            CheckpointError: what was saved is of another layout, or damaged.
            OSError: it cannot be read.
        """
        if self._save_path is not None and self._save_path.exists():
            KeptMemories(self.exchange).load(self._save_path)
        node = Node(f"server-{secrets.token_hex(4)}", listen=listen, secret=secret)
        try:
            async with node.running():
                self.spawn(node)
                background.ready(node.listening)
                waiting: list[Coroutine[Any, Any, Any]] = [background.closing.wait()]
                if self._save_path is not None and self._save_every is not None:
                    waiting.append(self._save_often(self._save_path, self._save_every))
                try:
                    await first_of(*waiting)
                finally:
                    await self.publications.close()
                    await self.exchange.close()
        finally:
            await self._save_last()

    async def publish(self, topic: str, data: Data, within: float | None = None) -> None:
        """Publish to all who have subscribed.

        Raises:
            InvalidExperience, Full, TimeoutError: as for `ReplayServer.publish`.
        """
        try:
            async with asyncio.timeout(within):
                await self.publications.publish(topic, freeze(data))
        except TimeoutError:
            raise TimeoutError(f"a subscriber had no room within {within} s") from None

    def write_line(self, client: str, text: str) -> None:
        """Add a line to the log file: the time here, who says it, and what, in which no line can be forged.

        Raises:
            InvalidExperience: there is no log file.
        """
        if self._lines is None:
            raise InvalidExperience("log: expected a server with a log_path")
        at = datetime.now().astimezone().isoformat(" ", "milliseconds")[:23]
        said = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
        self._lines.write(f"{at},{client},{said}\n")
        self._lines.flush()
        self._n_lines += 1

    async def statistics(self) -> ServerStatistics:
        """Return how it is doing."""
        exchange, publications = self.exchange, self.publications
        inserted_bytes, here = exchange.inserted_bytes, self.layout.kept_by == "server"
        return ServerStatistics(
            clients=exchange.union.held,
            left=exchange.left,
            union=exchange.union.statistics(),
            received_bytes=inserted_bytes if here else self.received_bytes,
            inserted_bytes=inserted_bytes,
            published=publications.published,
            dropped_publications=publications.dropped,
            refused_publications=publications.refused,
            refused_samples=exchange.refused,
            lost_updates=exchange.lost_updates,
            log_lines=self._n_lines,
            saved_times=self._n_saves,
            failed_saves=self._n_failed,
        )

    # What is kept ---------------------------------------------------------------------------------------------------

    async def save(self, path: Path) -> None:
        """Write what is kept here, as it is now, while all goes on.

        Raises:
            InvalidExperience: clients keep their memories.
            OSError: it cannot be written; what was there before stays.
        """
        self._check_kept_here("save")
        await self._snapshots.write(KeptMemories(self.exchange).snapshot, path)
        self._n_saves += 1

    async def load(self, path: Path) -> None:
        """Take over what was saved.

        Raises:
            InvalidExperience: clients keep their memories.
            CheckpointError, OSError: as for `Checkpointed.load`.
        """
        self._check_kept_here("load")
        KeptMemories(self.exchange).load(path)

    def _check_kept_here(self, what: str) -> None:
        if self.layout.kept_by != "server":
            raise InvalidExperience(f"kept_by: expected server, to {what} memories here; clients keep theirs")

    async def _save_often(self, path: Path, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await self.save(path)
            except OSError as error:  # the disk may be full for a while only
                self._n_failed += 1
                self._log.warning("what is kept could not be saved", path=str(path), reason=str(error))

    async def _save_last(self) -> None:
        await self._snapshots.written()
        if self._save_path is not None:
            try:
                await self.save(self._save_path)
            except OSError as error:
                self.unsaved = error


def check_saving(layout: AnyLayout, save_path: str | Path | None, save_every: float | None) -> None:
    """Raise `ValueError` unless a server of that layout can save there, and so often."""
    if save_path is not None and layout.kept_by != "server":
        raise ValueError("save_path: expected none, since clients keep their memories; ReplayClient.save writes these")
    if save_every is not None and not (0 < save_every < np.inf):
        raise ValueError(f"save_every: expected a finite number of seconds above 0, got {save_every}")
    if save_every is not None and save_path is None:
        raise ValueError(f"save_path: expected where to save every {save_every} s, got none")
