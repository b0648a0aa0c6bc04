"""Replay server with a synchronous interface.

It runs on a node of its own in a thread. Both sides prove that they know a secret, broken connections are resumed
without loss, and received data is never unpickled.
"""

import secrets
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.replay_buffers.federated import FederatedReplay, SampledUnion, UnionStatistics
from components.replay_buffers.invalid import InvalidExperience, UnknownClient
from components.replay_buffers.limiter import SampleToInsertRatio
from components.replay_server.bounded_queue import OverflowPolicy
from components.replay_server.coordinator import Coordinator
from components.replay_server.layouts import AnyLayout
from components.replay_server.loop_thread import LoopThread, ThreadOwner, first_of
from components.replay_server.protocol import SERVER
from components.replay_server.publications import Publications
from components.replay_server.saved_buffers import BufferSaver
from components.replay_server.server_actor import ReplayServerActor
from orchestra import Node


@dataclass(frozen=True, slots=True)
class ServerStatistics:
    """Counts of a replay server."""

    clients: dict[str, int]
    """Clients whose entries are sampled, and the number of entries of each, as last reported."""
    left: tuple[str, ...]
    """Those of these clients that have left and whose buffers the server keeps."""
    union: UnionStatistics
    """Items drawn by clients and sampled by the server. If the server keeps the buffers, they are not sent."""
    received_bytes: int
    """Bytes of entries, or of drawn items, that arrived from clients."""
    inserted_bytes: int
    """Bytes of all entries that clients have inserted."""
    published: int
    """Publications."""
    dropped_publications: int
    """Publications dropped for newer ones, counted for each subscriber."""
    refused_publications: int
    """Publications refused because a subscriber had no room."""
    refused_samples: int
    """Sample requests refused because too many waited."""
    lost_updates: int
    """Priorities of items whose client had left."""
    log_lines: int
    """Lines that clients have written to the log file."""
    saved_times: int
    """Number of times that the buffers were saved."""
    failed_saves: int
    """Number of saves that failed."""

    @property
    def saved(self) -> float:
        """Share of the bandwidth saved by sending sampled items instead of inserted entries.

        It is negative if more is sampled than inserted, and 0 before the first insert.
        """
        return 1.0 - self.received_bytes / self.inserted_bytes if self.inserted_bytes else 0.0


class LogFile:
    """Log file of clients' lines, each with the server's time and the client's name.

    Args:
        path: file to append to; None refuses lines.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: str | Path | None) -> None:
        self._file = None if path is None else open(path, "a", encoding="utf-8")  # noqa: SIM115 (closed with the server)
        self.n_lines = 0

    def write(self, client: str, text: str) -> None:
        """Write a line. Characters that are not printable are escaped, so that no line can be forged.

        Raises:
            InvalidExperience: there is no log file.
        """
        if self._file is None:
            raise InvalidExperience("log: expected a server with a log_path")
        at = datetime.now().astimezone().isoformat(" ", "milliseconds")[:23]
        escaped = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
        self._file.write(f"{at},{client},{escaped}\n")
        self._file.flush()
        self.n_lines += 1

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._file is not None:
            self._file.close()


class ReplayServer(ThreadOwner):
    """Samples from the union of all clients' replay buffers, publishes bytes, and writes clients' log lines.

    Any thread may call any method. A method that waits takes a `timeout` in seconds, raises `TimeoutError` after it,
    and `Closed` if the server closes meanwhile.

    Buffers that the server keeps stay when their clients leave or die, and are still sampled from; a new client of the
    same name continues with the buffer. With a `save_path` they outlive the server: the next server restores them.

    A killed client process is detected within 2 seconds if it listens where the server can probe it, as it does by
    default on the server's machine, within 12 seconds otherwise, and within 24 seconds if its machine is silent. Items
    that were requested from it are then sampled from other clients.

    Args:
        layout: a `Layout` or an `EpisodeLayout`: the format of entries, and the settings of buffers. Clients fetch it.
        listen: address for clients: `tcp://HOST:PORT` (port 0 for any free port), `tls://HOST:PORT`, `unix:///PATH`.
        secret: secret shared with clients, at least 16 bytes; random by default.
        unencrypted: allow plain TCP beyond this host.
        limiter: paces inserts, counted in entries, and samples, counted in items; None does not pace.
        beta: exponent of the importance weights.
        max_items: largest number of held items of one client, and of items of a batch; see `FederatedReplay`.
        max_uses: number of times that a client's item may be sampled.
        ahead: batches requested from clients in advance of the one being sampled, together at most `max_items` items.
            They arrive sooner, but are drawn by priorities from before the updates of the batches in between.
        max_waiting: sample requests that may wait; one more raises `Full`, and is counted.
        publish_mark: publications that may wait for one subscriber.
        when_slow: policy for one more: `drop_oldest` for that subscriber, `block` the publisher, or `refuse` it.
        max_left: buffers kept here of clients that have left; beyond that, the buffer of the client that left first is
            dropped.
        folder: directory of the disk for buffers kept here; each takes its full size at once. By default they are in
            memory. A client whose buffer has no space there gets `Full`.
        save_path: file to which the buffers kept here are saved when the server closes, and from which they are
            restored when it starts, if the file exists.
        save_every: seconds between two saves. A failure is logged and counted, and the next save is tried.
        log_path: file to which clients' log lines are appended.
        seed: seed of the server's random numbers.

    Raises:
        ValueError: an argument is out of its range, or inserts and samples could wait for each other.
        UsageError: the address is malformed or taken.
        CheckpointError: the file at `save_path` is of another layout, or damaged; the message names the field.
        OSError: the log file cannot be opened, or the saved file not be read.
    """

    def __init__(
        self,
        layout: AnyLayout,
        *,
        listen: str = "tcp://127.0.0.1:0",
        secret: bytes | None = None,
        unencrypted: bool = False,
        limiter: SampleToInsertRatio | None = None,
        beta: float = 0.4,
        max_items: int = 4096,
        max_uses: int = 1,
        ahead: int = 0,
        max_waiting: int = 64,
        publish_mark: int = 4,
        when_slow: OverflowPolicy = "drop_oldest",
        max_left: int = 64,
        folder: str | Path | None = None,
        save_path: str | Path | None = None,
        save_every: float | None = None,
        log_path: str | Path | None = None,
        seed: int | None = None,
    ) -> None:
        self.layout = layout
        self.secret = secrets.token_bytes(32) if secret is None else secret
        """Shared with clients."""
        self._unencrypted = unencrypted
        self.rng = np.random.default_rng(seed)
        new_union = partial(FederatedReplay, layout.sample_fields, beta=beta, max_items=max_items, max_uses=max_uses)
        waiting = {"ahead": ahead, "max_waiting": max_waiting, "max_left": max_left}
        self.coordinator = Coordinator(layout, new_union, limiter=limiter, rng=self.rng, folder=folder, **waiting)
        self.publications = Publications(publish_mark, when_slow)
        self._listen, self._saver = listen, BufferSaver(self.coordinator, save_path, save_every)
        self._log = LogFile(log_path)
        self._thread = LoopThread("ReplayServer", self._live)
        self.address: str = self._thread.start()
        """Where clients connect."""

    def sample(self, batch_size: int, *, timeout: float | None = None) -> SampledUnion:
        """Draw a batch; item i of client k has the probability w_i / Σ w, with the sum over all clients.

        It waits for the limiter, for items with weight, and for clients to send the drawn items.

        Raises:
            ValueError: `batch_size` is not 1 to `max_items`, or such samples and inserts could wait for each other.
            TimeoutError: there was no batch within `timeout` seconds; the message says what was missing.
            Full: `max_waiting` requests wait already.
            Closed: the server is closed.
        """
        return self._thread.call(self.coordinator.sample, batch_size, timeout).padded(self.coordinator.union.fields)

    def update(self, sampled: SampledUnion, priorities: NDArray[np.floating[Any]]) -> None:
        """Set new priorities (B,) of a batch, where its items are kept.

        Raises:
            InvalidExperience: they are not B floats that are finite and at least 0. Nothing has changed then.
            Closed: the server is closed.
        """
        self._thread.check_open()
        self.coordinator.schema.check_priorities(priorities, len(sampled.whose))
        self._thread.post(self.coordinator.route, sampled, priorities.copy())  # cannot fail: the priorities are checked

    def publish(self, topic: str, data: bytes, *, timeout: float | None = None) -> None:
        """Send bytes to all subscribers of a topic, and to later ones until something newer is published.

        Raises:
            Full: a subscriber has no room, and the policy is to refuse; no subscriber gets the bytes.
            TimeoutError: the policy is to block, and a subscriber had no room within `timeout` seconds. Those before it
                got the bytes.
            Closed: the server is closed.
        """
        self._thread.call(self.publications.publish, topic, np.frombuffer(data, np.uint8), timeout)

    def pace(self, limiter: SampleToInsertRatio | None) -> None:
        """Replace the limiter; the new one gets the counts of the old one.

        Raises:
            ValueError: chunks and samples could wait for each other. The old one stays.
            Closed: the server is closed.
        """
        self._thread.call(self._pace, limiter)

    async def _pace(self, limiter: SampleToInsertRatio | None) -> None:
        self.coordinator.pace(limiter)

    def statistics(self) -> ServerStatistics:
        """Return the server's counts.

        Raises:
            Closed: the server is closed.
        """
        return self._thread.call(self._statistics)

    async def _statistics(self) -> ServerStatistics:
        coordinator, publications, saver = self.coordinator, self.publications, self._saver
        inserted_bytes, kept_here = coordinator.inserted_bytes, self.layout.kept_by == "server"
        return ServerStatistics(
            clients=coordinator.union.held,
            left=coordinator.left,
            union=coordinator.union.statistics(),
            received_bytes=inserted_bytes if kept_here else coordinator.received_bytes,
            inserted_bytes=inserted_bytes,
            published=publications.published,
            dropped_publications=publications.dropped,
            refused_publications=publications.refused,
            refused_samples=coordinator.refused,
            lost_updates=coordinator.lost_updates,
            log_lines=self._log.n_lines,
            saved_times=saver.saved_times,
            failed_saves=saver.failed_saves,
        )

    def save(self, path: str | Path | None = None) -> None:
        """Write the buffers kept here, as they are at one moment, to a file, while clients continue.

        A thread writes the file. Clients wait while priorities and counts are copied. Of the entries, only rows that
        are overwritten before they are written are copied, one MiB at a time. A crash leaves either the previous file
        or the complete new one.

        Args:
            path: the file; by default `save_path`.

        Raises:
            InvalidExperience: clients keep their buffers.
            ValueError: there is neither a path nor a `save_path`.
            OSError: it cannot be written.
            Closed: the server is closed.
        """
        self._thread.call(self._saver.save, path)

    def load(self, path: str | Path | None = None) -> None:
        """Restore saved buffers; the buffers kept here before are dropped.

        Connected clients continue with the buffer of their name, or with an empty one; other clients count as left. The
        limiter's counts are restored if both the saved server and this one are paced.

        Args:
            path: the file; by default `save_path`.

        Raises:
            InvalidExperience: clients keep their buffers.
            CheckpointError: it is of another layout, or damaged; the message names the field. Nothing has changed then.
            ValueError: there is neither a path nor a `save_path`.
            Full: there is no space in `folder` for these buffers beside the present ones.
            OSError: there is no such file, or it cannot be read.
            Closed: the server is closed.
        """
        self._thread.call(self._saver.load, path)

    def forget(self, client: str) -> None:
        """Drop the buffer kept here of a client that has left.

        Raises:
            UnknownClient: no client of this name has left.
            Closed: the server is closed.
        """
        self._thread.call(self._forget, client)

    async def _forget(self, client: str) -> None:
        if client not in self.coordinator.left:
            raise UnknownClient(f"client: expected one that has left, {list(self.coordinator.left)}, got {client!r}")
        self.coordinator.forget(client)

    def close(self) -> None:
        """Disconnect clients, fail waiting calls, save, and end the thread. Closing again does nothing.

        Raises:
            OSError: the buffers kept here could not be saved to `save_path`. The server is closed nevertheless.
        """
        super().close()
        unsaved, self._saver.unsaved = self._saver.unsaved, None
        if unsaved is not None:
            raise unsaved

    def __repr__(self) -> str:
        return f"<ReplayServer at {self.address} of {self.layout.kind}>"

    async def _live(self, thread: LoopThread) -> None:
        async with AsyncExitStack() as at_end:
            at_end.callback(self._log.close)
            self._saver.load_if_saved()
            at_end.push_async_callback(self._saver.save_last)
            node = Node(
                f"server-{secrets.token_hex(4)}", listen=self._listen, secret=self.secret, unencrypted=self._unencrypted
            )
            await at_end.enter_async_context(node.running())
            at_end.push_async_callback(self.coordinator.close)
            at_end.push_async_callback(self.publications.close)
            node.spawn(SERVER, ReplayServerActor, node, self.coordinator, self.publications, self._log.write)
            thread.ready(node.listening)
            await first_of(thread.closing.wait(), self._saver.run())
