"""A replay memory for many machines: the server, in plain synchronous Python.

It lives on a node of orchestra in a thread of its own, and speaks with clients through an actor there. So both sides
prove that they know a secret, broken connections are mended without loss, and nothing that arrives is ever unpickled.
"""

import secrets
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from components.replay_buffers.federated import SampledUnion
from components.replay_buffers.invalid import UnknownClient
from components.replay_buffers.limiter import SampleToInsertRatio
from components.replay_server.bounded_queue import Policy
from components.replay_server.coordinator import Exchange
from components.replay_server.host import Host, ServerStatistics, check_saving
from components.replay_server.layouts import AnyLayout
from components.replay_server.loop_thread import Background
from components.replay_server.publications import Publications

T = TypeVar("T")


class ReplayServer:
    """Draws batches from the union of all clients' memories, publishes bytes to them, and writes their log lines.

    Every method may be called by any thread. Whatever waits can be given a `timeout` in seconds, is a `TimeoutError`
    after that, and `Closed` if the server is closed meanwhile.

    Where it keeps the memories, these stay when their clients leave or die, are drawn from, and wait for a client of
    the same name to go on with them. With a `save_path` they outlive the server too: what was saved there is taken back
    when a server begins.

    A client whose process was killed is noticed within 2 seconds where it lets the server look (as it does by default
    on one machine), within 12 otherwise, and within 24 if its whole machine has gone silent; what was picked of it is
    then picked of others.

    Args:
        layout: what entries are, a `Layout` or an `EpisodeLayout`, and how memories are made; clients are told.
        listen: where clients reach it: `tcp://HOST:PORT` (0 for any free port), `tls://HOST:PORT`, `unix:///PATH`.
        secret: what clients have to know; by default one is made up.
        limiter: paces inserts, counted in entries, and samples, counted in items.
        beta: strength of the correction by importance weights.
        max_items: items of one client that are held, and of a batch, at most; see `FederatedReplay`.
        max_uses: how often an item that was pushed once may be drawn.
        ahead: for how many batches more clients are asked whenever one is drawn, `max_items` together at most. They
            are there sooner then, and made of priorities as they were before those of the batches between came.
        max_waiting: batches that may be waited for at a time; one more is refused as `Full`, and counted.
        publish_mark: publications that may wait for one subscriber.
        when_slow: what happens to one more: `drop_oldest` for it, `block` whoever publishes, or `refuse` it.
        max_left: memories that are kept here of clients that have left; of more, the one goes whose client left first.
        folder: on whose disk the memories are that are kept here, each as large as it may become at once; by default
            they are in memory. One that there is no room for is `Full` to its client.
        save_path: where the memories that are kept here are saved when the server is closed, and taken back from when
            it begins, if there is such a file.
        save_every: how often to save in between, in seconds. If that fails, it is logged and counted, and tried again.
        log_path: the file that clients' log lines are added to.
        seed: of its draws.

    Raises:
        ValueError: an argument is out of its range.
        UsageError: the address is malformed or taken.
        CheckpointError: what is at `save_path` is of another layout, or damaged; the message names the field.
        OSError: the log file cannot be opened, or what was saved not be read.
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
        ahead: int = 0,
        max_waiting: int = 64,
        publish_mark: int = 4,
        when_slow: Policy = "drop_oldest",
        max_left: int = 64,
        folder: str | Path | None = None,
        save_path: str | Path | None = None,
        save_every: float | None = None,
        log_path: str | Path | None = None,
        seed: int | None = None,
    ) -> None:
        check_saving(layout, save_path, save_every)
        self.layout = layout
        self.secret = secrets.token_bytes(32) if secret is None else secret
        """What clients have to know."""
        self.rng = np.random.default_rng(seed)
        self.exchange = Exchange(
            layout,
            limiter=limiter,
            rng=self.rng,
            beta=beta,
            max_items=max_items,
            max_uses=max_uses,
            ahead=ahead,
            max_waiting=max_waiting,
            max_left=max_left,
            folder=folder,
        )
        self._save_path, self._save_every = None if save_path is None else Path(save_path), save_every
        self._unsaved: OSError | None = None
        self._host: Host
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
        return self._background.call(self.exchange.sample, batch_size, timeout).padded(self.exchange.union.fields)

    def update(self, sampled: SampledUnion, priorities: NDArray[np.floating[Any]]) -> None:
        """Give new priorities (B,) to a batch, wherever its items are kept.

        Raises:
            InvalidExperience: they are not B floats that are finite and at least 0. Nothing has changed then.
            Closed: the server is closed.
        """
        self._background.check_open()
        self.exchange.gate.check_priorities(priorities, len(sampled.whose))
        self._background.post(self.exchange.route, sampled, priorities.copy())  # not waited for: nothing can go wrong

    def publish(self, topic: str, data: bytes, *, timeout: float | None = None) -> None:
        """Send bytes to all who have subscribed to a topic, and to those who will until something newer is published.

        Raises:
            Full: a subscriber has no room, and the policy is to refuse; nobody gets it.
            TimeoutError: the policy is to block, and a subscriber had no room within `timeout` seconds; those before
                it have got it.
            Closed: the server is closed.
        """
        self._background.call(self._host.publish, topic, np.frombuffer(data, np.uint8), timeout)

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
        return self._background.call(self._host.statistics)

    def save(self, path: str | Path | None = None) -> None:
        """Write the memories that are kept here, as they are at one moment, to a file, while all goes on.

        A thread writes them while clients go on. These are held up while priorities and the like are copied; of all
        else only what is overwritten before it has been written is copied, a MiB at a time. Whatever happens, the file
        is either the one that was there before or all of the new one.

        Args:
            path: where; by default `save_path`.

        Raises:
            InvalidExperience: clients keep their memories.
            ValueError: there is neither a path nor a `save_path`.
            OSError: it cannot be written.
            Closed: the server is closed.
        """
        self._background.call(self._host.save, self._where(path))

    def load(self, path: str | Path | None = None) -> None:
        """Take over the memories that `save` wrote; those that were kept here before are gone.

        Clients that are here go on with the memory of their name, or with an empty one; the others have left. Where
        both what was saved and this server are paced, the counts of the limiter are taken over too.

        Args:
            path: where; by default `save_path`.

        Raises:
            InvalidExperience: clients keep their memories.
            CheckpointError: it is of another layout, or damaged; the message names the field. Nothing has changed then.
            ValueError: there is neither a path nor a `save_path`.
            Full: there is no room in `folder` for these beside those that there are.
            OSError: there is no such file, or it cannot be read.
            Closed: the server is closed.
        """
        self._background.call(self._host.load, self._where(path))

    def _where(self, path: str | Path | None) -> Path:
        chosen = self._save_path if path is None else Path(path)
        if chosen is None:
            raise ValueError("path: expected one, since there is no save_path, got none")
        return chosen

    def forget(self, client: str) -> None:
        """Drop the memory that is kept here of a client that has left.

        Raises:
            UnknownClient: none of this name has left.
            Closed: the server is closed.
        """
        self._background.call(_soon, lambda: self._forget(client))

    def _forget(self, client: str) -> None:
        if client not in self.exchange.left:
            raise UnknownClient(f"client: expected one that has left, {list(self.exchange.left)}, got {client!r}")
        self.exchange.forget(client)

    def close(self) -> None:
        """Say goodbye to clients, fail what still waits, save, and end the thread. Closing again does nothing.

        Raises:
            OSError: what is kept here could not be saved to `save_path`. The server is closed all the same.
        """
        self._background.close()
        self._close_log()
        if self._unsaved is not None:
            unsaved, self._unsaved = self._unsaved, None
            raise unsaved

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
        host = Host(
            self.layout, self.exchange, Publications(*self._marks), self._log, self._save_path, self._save_every
        )
        self._host, self.publications = host, host.publications
        try:
            await host.live(background, self._listen, self.secret)
        finally:
            self._unsaved = host.unsaved


async def _soon(function: Callable[[], T]) -> T:
    return function()
