"""A replay memory for many machines: the server, in plain synchronous Python.

It lives on a node of orchestra in a thread of its own, and speaks with clients through an actor there. So both sides
prove that they know a secret, broken connections are mended without loss, and nothing that arrives is ever unpickled.
"""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from components.replay.background import Background
from components.replay.desk import Desk
from components.replay.exchange import Exchange
from components.replay.high_water import Policy
from components.replay.invalid import InvalidExperience
from components.replay.layout import AnyLayout
from components.replay.limiter import SampleToInsertRatio
from components.replay.protocol import (
    DESK,
)
from components.replay.publications import Data, Publications
from components.replay.two_phase import SampledUnion, UnionStatistics
from orchestra import (
    Node,
    freeze,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ServerStatistics:
    """How a server is doing."""

    clients: dict[str, int]
    """Who has joined, and how many entries each holds, as far as it has told."""
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

    @property
    def saved(self) -> float:
        """The share of the bandwidth that two-phase sampling saved by sending what is drawn, not what is inserted.

        Negative where more is drawn than inserted; 0 where nothing was inserted yet.
        """
        return 1.0 - self.received_bytes / self.inserted_bytes if self.inserted_bytes else 0.0


class ReplayServer:
    """Draws batches from the union of all clients' memories, publishes bytes to them, and writes their log lines.

    Every method may be called by any thread. Whatever waits can be given a `timeout` in seconds, is a `TimeoutError`
    after that, and `Closed` if the server is closed meanwhile.

    A client whose process was killed is noticed within 2 seconds where it lets the server look (as it does by default
    on one machine), within 12 otherwise, and within 22 if its whole machine has gone silent; what was picked of it is
    then picked of others.

    Args:
        layout: what entries are, a `Layout` or an `EpisodeLayout`, and how memories are made; clients are told.
        listen: where clients reach it: `tcp://HOST:PORT` (0 for any free port), `tls://HOST:PORT`, `unix:///PATH`.
        secret: what clients have to know; by default one is made up.
        limiter: paces inserts, counted in entries, and samples, counted in items.
        beta: strength of the correction by importance weights.
        max_items: items of one client that are held, and of a batch, at most; see `TwoPhaseReplay`.
        max_uses: how often an item that was pushed once may be drawn.
        ahead: ask clients for the next batch as soon as one is drawn, whatever happens to priorities meanwhile.
        max_waiting: batches that may be waited for at a time; one more is refused as `Full`, and counted.
        publish_mark: publications that may wait for one subscriber.
        when_slow: what happens to one more: `drop_oldest` for it, `block` whoever publishes, or `refuse` it.
        log_path: the file that clients' log lines are added to.
        seed: of its draws.

    Raises:
        ValueError: an argument is out of its range.
        UsageError: the address is malformed or taken.
        OSError: the log file cannot be opened.
    """

    def __init__(
        self,
        layout: AnyLayout,
        *,
        listen: str = "tcp://127.0.0.1:0",
        secret: bytes | None = None,
        limiter: SampleToInsertRatio | None = None,
        beta: float = 0.4,
        max_items: int = 4096,
        max_uses: int = 1,
        ahead: bool = False,
        max_waiting: int = 64,
        publish_mark: int = 4,
        when_slow: Policy = "drop_oldest",
        log_path: str | Path | None = None,
        seed: int | None = None,
    ) -> None:
        self.layout = layout
        self.secret = secrets.token_bytes(32) if secret is None else secret
        """What clients have to know."""
        self.rng = np.random.default_rng(seed)
        self.log_lines = 0
        self.received_bytes = 0
        self.exchange = Exchange(
            layout,
            limiter=limiter,
            rng=self.rng,
            beta=beta,
            max_items=max_items,
            max_uses=max_uses,
            ahead=ahead,
            max_waiting=max_waiting,
        )
        self._marks = (publish_mark, when_slow)
        self._log: TextIOWrapper | None = None
        if log_path is not None:
            self._log = open(log_path, "a", encoding="utf-8")  # noqa: SIM115 (closed with the server)
        self.publications: Publications
        self._listen = listen
        self._background = Background("ReplayServer", self._live)
        try:
            Publications(*self._marks)
            self.address: str = self._background.start()
            """Where clients reach it."""
        except BaseException:
            self._close_log()
            raise

    # What it is asked -----------------------------------------------------------------------------------------------

    def sample(self, batch_size: int, *, timeout: float | None = None) -> SampledUnion:
        """Draw a batch, item i of client k with probability w_i / Σ w over all clients, once there is enough.

        Waits for the limiter, for someone to hold something, and for clients to push what was picked of them.

        Raises:
            ValueError: `batch_size` is not 1 to `max_items`, or more than the limiter ever allows.
            TimeoutError: there was none within `timeout` seconds; the message says what was waited for.
            Full: `max_waiting` batches are waited for already.
            Closed: the server is closed.
        """
        return self._background.call(self.exchange.sample, batch_size, timeout)

    def update(self, sampled: SampledUnion, priorities: NDArray[np.floating[Any]]) -> None:
        """Give new priorities (B,) to a batch, wherever its items are kept.

        Raises:
            InvalidExperience: they are not B floats that are finite and at least 0. Nothing has changed then.
            Closed: the server is closed.
        """
        self._background.check_open()
        self.exchange.check_priorities(priorities, len(sampled.clients))
        self._background.post(self.exchange.update, sampled, priorities.copy())  # not waited for: nothing can go wrong

    def publish(self, topic: str, data: bytes, *, timeout: float | None = None) -> None:
        """Send bytes to all who have subscribed to a topic, and to those who will until something newer is published.

        Raises:
            Full: a subscriber has no room, and the policy is to refuse; nobody gets it.
            TimeoutError: the policy is to block, and a subscriber had no room within `timeout` seconds; those before
                it have got it.
            Closed: the server is closed.
        """
        self._background.call(self.publish_soon, topic, np.frombuffer(data, np.uint8), timeout)

    def pace(self, limiter: SampleToInsertRatio | None) -> None:
        """Go on with another limiter; it takes the counts of the one before over.

        Raises:
            ValueError: it would never let a chunk in. The one before stays.
            Closed: the server is closed.
        """
        self._background.call(_soon, lambda: self.exchange.pace(limiter))

    def statistics(self) -> ServerStatistics:
        """Return how it is doing.

        Raises:
            Closed: the server is closed.
        """
        return self._background.call(self._statistics)

    async def _statistics(self) -> ServerStatistics:
        exchange, publications = self.exchange, self.publications
        union = exchange.union.statistics()
        return ServerStatistics(
            clients=exchange.union.held,
            union=union,
            received_bytes=self.received_bytes,
            inserted_bytes=exchange.inserted_bytes,
            published=publications.published,
            dropped_publications=publications.dropped,
            refused_publications=publications.refused,
            refused_samples=exchange.refused,
            lost_updates=exchange.lost_updates,
            log_lines=self.log_lines,
        )

    def close(self) -> None:
        """Say goodbye to clients, fail what still waits, and end the thread. Closing again does nothing."""
        self._background.close()
        self._close_log()

    def _close_log(self) -> None:
        if self._log is not None:
            self._log.close()

    def __enter__(self) -> Self:
        self._background.check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ReplayServer at {self.address} of {', '.join(self.layout.names)}>"

    # In its thread --------------------------------------------------------------------------------------------------

    async def _live(self, background: Background) -> None:
        self.publications = Publications(*self._marks)
        node = Node(f"server-{secrets.token_hex(4)}", listen=self._listen, secret=self.secret)
        async with node.running():
            node.spawn(DESK, Desk, self, node)
            background.ready(node.listening)
            try:
                await background.closing.wait()
            finally:
                await self.publications.close()
                await self.exchange.close()

    async def publish_soon(self, topic: str, data: Data, within: float | None = None) -> None:
        """Publish, on the server's loop."""
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
        if self._log is None:
            raise InvalidExperience("log: expected a server with a log_path")
        at = datetime.now().astimezone().isoformat(" ", "milliseconds")[:23]
        said = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
        self._log.write(f"{at},{client},{said}\n")
        self._log.flush()
        self.log_lines += 1


async def _soon(function: Callable[[], T]) -> T:
    return function()
