"""Replay client with a synchronous interface."""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.replay_buffers.federated import SampledUnion
from components.replay_buffers.invalid import InvalidExperience, check_priorities
from components.replay_server.bounded_queue import OverflowPolicy
from components.replay_server.client_session import ClientSession
from components.replay_server.layouts import AnyLayout
from components.replay_server.loop_thread import LoopThread, ThreadOwner
from components.replay_server.outbox import Outbox
from components.replay_server.protocol import LogLineMsg, PublishMsg, SampledMsg, SampleMsg, UnsubscribeMsg, UpdateMsg
from components.replay_server.publications import Subscription
from components.replay_server.reconnect import Reconnector
from orchestra import check_name


@dataclass(frozen=True, slots=True)
class ClientStatistics:
    """Counts of a replay client."""

    connected: bool
    connections: int
    """Number of connections so far."""
    added: int
    """Added entries."""
    inserted: int
    """Entries inserted into the buffer, here or at the server."""
    waiting: int
    """Entries that wait to be inserted."""
    dropped: int
    """Entries dropped because too many waited."""
    refused: int
    """Entries refused because too many waited."""
    pushed: int
    """Items drawn from the buffer kept here, and sent to the server."""
    held: int
    """Entries in the buffer kept here."""


class ReplayClient(ThreadOwner):
    """Adds entries to a replay buffer of its own, which it or the server keeps, and sends requests to the server.

    Any thread may call any method. The layout of entries and buffers is fetched from the server when the client is
    made. If the server is lost, waiting requests fail with `Disconnected`: within 2 seconds if its process was killed,
    within 24 if its machine is silent. The client then tries to reconnect for `patience` seconds, while added entries
    wait, up to `high_water` of them; a buffer kept here stays. After that every method raises `Closed` with the reason.

    Args:
        address: address of the server, or of a proxy.
        name: name of this client, unique among connected clients; letters, digits, `-`, `_`, `.` and `:`.
        secret: secret shared with the server, at least 16 bytes.
        unencrypted: allow plain TCP beyond this host.
        high_water: entries that may wait to be inserted, at least two chunks; by default 4,096 transitions or 64
            episodes.
        when_full: policy for one more entry: its caller waits (`block`), the oldest chunk is dropped (`drop_oldest`),
            or the entry is refused as `Full`. All are counted. If n_step or window make items of consecutive
            transitions, the oldest whole episode is dropped; the client waits for an episode that is partly inserted.
        timeout: seconds for the first connection.
        patience: seconds for each later connection.
        listen: address at which the server may probe this process if it is silent; by default an address on this
            machine if the server is there too, else none.
        folder: directory of the disk for a buffer kept here; by default it is in memory.
        seed: seed of the draws from a buffer kept here.

    Raises:
        Disconnected: no server was found, or its secret differs.
        NameTaken: a client of this name has joined, and is alive.
        ValueError: an argument is out of its range.
        UsageError: the address or the name is malformed.
        Full: the server has no space for the client's buffer.
        OSError: there is no such folder, or too little space in it.
    """

    def __init__(
        self,
        address: str,
        name: str,
        *,
        secret: bytes,
        unencrypted: bool = False,
        high_water: int | None = None,
        when_full: OverflowPolicy = "block",
        timeout: float = 10.0,
        patience: float = 60.0,
        listen: str | None = None,
        folder: str | Path | None = None,
        seed: int | None = None,
    ) -> None:
        self.address, self.name = address, check_name(name, "a client")
        reconnector, rng = Reconnector(address, timeout, patience), np.random.default_rng(seed)
        self._session = session = ClientSession(
            reconnector, name, secret=secret, listen=listen, rng=rng, unencrypted=unencrypted
        )
        self._thread = LoopThread(f"ReplayClient {name}", partial(reconnector.run, session.connect), session.ended)
        self.layout: AnyLayout = self._thread.start()
        """Layout of the server."""
        self._fields = self.layout.sample_fields
        try:
            self._outbox = Outbox(
                self.layout,
                self.layout.high_water if high_water is None else high_water,
                when_full,
                self._thread.check_open,
                lambda: self._thread.post(session.wakes.set),
            )
            buffer = self.layout.new_buffer(folder) if self.layout.kept_by == "clients" else None
            self._thread.call(session.start_inserting, buffer, self._outbox)
        except BaseException:
            self._thread.close()
            raise

    def add_entry(
        self,
        entry: Mapping[str, Any],
        is_term: bool = False,
        *,
        priority: float | None = None,
        timeout: float | None = None,
    ) -> None:
        """Add a copy of one entry: a transition or a whole episode, as the layout says.

        Args:
            entry: for a transition, an array or NumPy scalar of its dtype for each field, or a Python number that fits
                it. For an episode of T steps, `obs` (T+1, A, O), `state` (T+1, S), `available` (T+1, A, U), `actions`
                (T, A), `reward` (T,) and the bool `terminated`.
            is_term: True to send it at once, with the entries before it: for the last transition of an episode. A whole
                episode is sent at once unless the layout's chunks hold several.
            priority: priority of the entry; by default the largest so far.
            timeout: seconds to wait for room, with policy `block`.

        Raises:
            InvalidExperience: a field is missing, unknown, or has another dtype or shape; a number that has to be
                finite is not; or the priority is negative or not finite. Nothing has changed then.
            Full: there is no room, and the policy is to refuse.
            TimeoutError: there was no room within `timeout` seconds.
            Closed: the client is closed or has failed.
        """
        self._outbox.add(entry, is_term, priority, timeout)

    def add_entries(
        self,
        entries: Mapping[str, NDArray[Any]],
        *,
        priorities: NDArray[np.floating[Any]] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Add copies of N consecutive entries, all or none, and send them at once.

        Args:
            entries: arrays by field: (N, *shape) for transitions; for episodes those of `EpisodeReplay.insert`, back
                to back.
            priorities: (N,); by default the largest so far.
            timeout: seconds to wait for room, with policy `block`.

        Raises:
            Exception: as for `add_entry`.
        """
        self._outbox.add_many(entries, priorities, timeout)

    def flush(self, *, timeout: float | None = None) -> None:
        """Wait until all added entries are inserted and can be sampled.

        Raises:
            TimeoutError: they were not within `timeout` seconds.
            Closed: the client is closed or has failed.
        """
        self._thread.check_open()
        begun = time.monotonic()
        self._outbox.flush(timeout)
        self._thread.call(self._session.wait_reported, timeout and timeout + begun - time.monotonic())

    def sample(self, batch_size: int, *, timeout: float | None = None) -> SampledUnion:
        """Draw a batch from the union of all clients' buffers; see `ReplayServer.sample`. Arrays may be read-only.

        Raises:
            Disconnected: the server is lost.
            Exception: as for `ReplayServer.sample`.
        """
        answer: SampledMsg = self._thread.call(self._session.ask, SampleMsg(batch_size=batch_size), timeout)
        return answer.sampled.padded(self._fields)

    def update(self, sampled: SampledUnion, priorities: NDArray[np.floating[Any]]) -> None:
        """Set new priorities (B,) of a batch; see `ReplayServer.update`.

        Raises:
            Disconnected: the server is lost.
            Exception: as for `ReplayServer.update`.
        """
        check_priorities(priorities, len(sampled.whose))
        message = UpdateMsg(
            names=sampled.names,
            whose=sampled.whose,
            indices=sampled.indices,
            generations=sampled.generations,
            priorities=priorities.astype(np.float64),
        )
        self._thread.call(self._session.ask, message)

    def publish(self, topic: str, data: bytes, *, timeout: float | None = None) -> None:
        """Send bytes to all subscribers of a topic; see `ReplayServer.publish`.

        Raises:
            Disconnected: the server is lost.
            Exception: as for `ReplayServer.publish`.
        """
        message = PublishMsg(topic=topic, data=np.frombuffer(data, np.uint8))
        self._thread.call(self._session.ask, message, timeout)

    def subscribe(self, topic: str, *, high_water: int = 1, when_full: OverflowPolicy = "drop_oldest") -> Subscription:
        """Receive publications on a topic, first the newest existing one. By default only the newest waits to be read.

        Raises:
            ValueError: `high_water` or `when_full` is out of its range, or the topic has a subscription.
            Disconnected: the server is lost.
            Closed: the client is closed or has failed.
        """
        subscription = Subscription(topic, high_water, when_full, self._thread.check_open)
        self._thread.call(self._session.subscribe, subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Stop receiving publications on a topic.

        Raises:
            Disconnected: the server is lost.
            Closed: the client is closed or has failed.
        """
        if self._session.subscriptions.get(subscription.topic) is subscription:
            del self._session.subscriptions[subscription.topic]
            self._thread.call(self._session.ask, UnsubscribeMsg(topic=subscription.topic, ref=self._session.me))

    def log(self, text: str) -> None:
        """Write a line of up to 65,536 characters into the server's log file.

        Raises:
            InvalidExperience: the server has no log file, or the line is too long.
            Disconnected: the server is lost.
            Closed: the client is closed or has failed.
        """
        if len(text) > 1 << 16:
            raise InvalidExperience(f"log: expected at most {1 << 16} characters, got {len(text)}")
        self._thread.call(self._session.ask, LogLineMsg(client=self.name, text=text))

    def save(self, path: str | Path) -> None:
        """Write the buffer kept here, as it is now, to a file, while other threads and the server use it.

        Raises:
            InvalidExperience: the server keeps the buffer.
            OSError: it cannot be written; the previous file stays.
            Closed: the client is closed or has failed.
        """
        self.flush()
        self._thread.call(self._session.save, path)

    def load(self, path: str | Path) -> None:
        """Restore a saved buffer; the entries held before are dropped.

        Raises:
            InvalidExperience: the server keeps the buffer.
            CheckpointError: it is of another layout, or damaged; the message names the field. Nothing has changed then.
            OSError: there is no such file.
            Closed: the client is closed or has failed.
        """
        self.flush()
        self._thread.call(self._session.load, path)

    def statistics(self) -> ClientStatistics:
        """Return the client's counts; after `close`, those at the end."""
        outbox, session = self._outbox, self._session
        return ClientStatistics(
            connected=session.server is not None,
            connections=session.reconnector.connections,
            added=outbox.added,
            inserted=outbox.done,
            waiting=outbox.queue.level,
            dropped=outbox.queue.dropped,
            refused=outbox.queue.refused,
            pushed=session.pushed,
            held=0 if session.buffer is None else len(session.buffer),
        )

    def close(self, *, timeout: float = 5.0) -> None:
        """Flush for up to `timeout` seconds, leave, and end the thread. Closing again does nothing."""
        with suppress(TimeoutError, RuntimeError):  # already closed or failed: callers have seen the error
            self.flush(timeout=timeout)
        super().close()

    def __exit__(self, *raised: object) -> None:
        self.close(timeout=5.0 if raised[0] is None else 0.0)

    def __repr__(self) -> str:
        return f"<ReplayClient {self.name} of {self.address}>"
