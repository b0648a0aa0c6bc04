"""A replay memory for many machines: the client, in plain synchronous Python."""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from components.replay_buffers.federated import SampledUnion
from components.replay_buffers.invalid import InvalidExperience, check_priorities
from components.replay_server.bounded_queue import Policy
from components.replay_server.client_session import Visitor
from components.replay_server.layouts import AnyLayout
from components.replay_server.loop_thread import Background
from components.replay_server.outbox import Outbox
from components.replay_server.protocol import (
    LineMsg,
    PublishMsg,
    RefusedMsg,
    SampleMsg,
    UnsubscribeMsg,
    UpdateMsg,
)
from components.replay_server.subscription import Subscription
from orchestra import Request
from orchestra.actors.envelope import check_name

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ClientStatistics:
    """How a client is doing."""

    connected: bool
    connections: int
    """How often it has connected."""
    added: int
    """Entries that were added."""
    inserted: int
    """Entries that were inserted, here or in the server, wherever the memory is."""
    waiting: int
    """Entries that wait for that."""
    dropped: int
    """Entries that were dropped at the high-water mark."""
    refused: int
    """Entries that were refused there."""
    pushed: int
    """Items that were drawn from the memory kept here, and pushed."""
    held: int
    """Entries in the memory kept here."""


class ReplayClient:
    """Adds entries to a memory of its own, here or in the server, and talks to the server otherwise.

    Every method may be called by any thread. What entries are and how the memory is made comes from the server when the
    client is made: `layout`. If the server goes, what is under way fails with `Disconnected`: within 2 seconds if its
    process was killed, within 24 if its machine has gone silent. The client then looks for it for `patience` seconds,
    during which entries wait at the high-water mark; a memory that is kept here stays. After that it gives up, and
    everything raises `Closed` with the reason.

    Args:
        address: where the server listens, or a proxy.
        name: of this client; letters, digits, `-`, `_`, `.` and `:`. No other client that lives has it.
        secret: what the server knows.
        high_water: entries that may wait to be inserted, at least two chunks; by default 4,096 transitions or 64
            episodes.
        when_full: what happens to one more: whoever adds it waits (`block`), the oldest chunk goes (`drop_oldest`), or
            it is refused as `Full`. All are counted. Where n_step or window make items of transitions that follow each
            other, the oldest whole episode goes; one of which a part is inserted already is waited for.
        timeout: seconds to find the server within, at first.
        patience: seconds to look for it, once it is lost.
        listen: where the server may look whether this process lives, if it is silent; by default a place on this
            machine if the server is there, and none else.
        folder: on whose disk a memory is that is kept here; by default it is in memory.
        seed: of the draws from a memory that is kept here.

    Raises:
        Disconnected: no server was found, or it does not know the secret.
        NameTaken: a client of this name has joined, and is alive.
        ValueError: an argument is out of its range.
        UsageError: the address is malformed, or the name cannot be one.
        Full: the server has no room for its memory.
        OSError: there is no such folder, or too little space in it.
    """

    def __init__(
        self,
        address: str,
        name: str,
        *,
        secret: bytes,
        high_water: int | None = None,
        when_full: Policy = "block",
        timeout: float = 10.0,
        patience: float = 60.0,
        listen: str | None = None,
        folder: str | Path | None = None,
        seed: int | None = None,
    ) -> None:
        self.address, self.name = address, check_name(name, "a client")
        self._visitor = visitor = Visitor(
            address,
            name,
            secret=secret,
            timeout=timeout,
            patience=patience,
            listen=listen,
            rng=np.random.default_rng(seed),
        )
        self._background = Background(f"ReplayClient {name}", visitor.live, visitor.ended)
        self.layout: AnyLayout = self._background.start()
        """What the server keeps, and how; fetched from it."""
        self._fields = self.layout.share_fields
        try:
            here = self.layout.kept_by == "clients"
            memory = self.layout.memory(folder if here else None)
            self._outbox = Outbox(
                self.layout,
                self.layout.high_water if high_water is None else high_water,
                when_full,
                memory.priorities.weigh,
                self._background.check_open,
                lambda: self._background.post(visitor.wakes.set),
            )
            self._background.call(visitor.go, memory if here else None, self._outbox)
        except BaseException:
            self._background.close()
            raise

    # What it is asked -----------------------------------------------------------------------------------------------

    def add_entry(
        self,
        entry: Mapping[str, Any],
        is_term: bool = False,
        *,
        priority: float | None = None,
        timeout: float | None = None,
    ) -> None:
        """Add an entry, which is copied: a transition or a whole episode, as the layout says.

        Args:
            entry: of a transition, by field an array or NumPy scalar of its dtype, or a Python number that fits it. Of
                an episode of T steps, `obs` (T+1, A, O), `state` (T+1, S), `available` (T+1, A, U), `actions` (T, A),
                `reward` (T,), and whether it `terminated` or was cut.
            is_term: whether it is to be sent at once, with those before it: where an episode ends with a transition.
                An episode always is, unless the layout says that several go in a chunk.
            priority: what it is drawn by; by default the largest so far.
            timeout: seconds to wait for room, with the policy to block.

        Raises:
            InvalidExperience: a field is missing, unknown, or of another dtype or shape; or a number that is to be
                finite is not; or the priority is negative or not finite. Nothing has changed then.
            Full: there is no room, and the policy is to refuse.
            TimeoutError: there was no room within `timeout` seconds.
            Closed: the client is closed, or has given its server up.
        """
        self._outbox.add(entry, is_term, priority, timeout)

    def add_entries(
        self,
        entries: Mapping[str, NDArray[Any]],
        *,
        priorities: NDArray[np.floating[Any]] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Add N entries that follow each other, with `priorities` (N,); all of them, or none.

        Args:
            entries: by field what a memory inserts: of transitions (N, *shape); of episodes what `EpisodeReplay.insert`
                takes, back to back.
            priorities: what they are drawn by; by default the largest so far.
            timeout: seconds to wait for room, with the policy to block.

        Raises:
            Exception: as for `add_entry`; they are sent at once.
        """
        self._outbox.add_many(entries, priorities, timeout)

    def flush(self, *, timeout: float | None = None) -> None:
        """Wait until all that was added is inserted, and the server knows of it.

        Raises:
            TimeoutError: it was not within `timeout` seconds.
            Closed: the client is closed, or has given its server up.
        """
        self._background.check_open()
        until = None if timeout is None else time.monotonic() + timeout
        self._outbox.flush(timeout)
        self._background.call(self._visitor.heard, None if until is None else until - time.monotonic())

    def sample(self, batch_size: int, *, timeout: float | None = None) -> SampledUnion:
        """Draw a batch from the union of all clients' memories; see `ReplayServer.sample`. Arrays may be read-only.

        Raises:
            Disconnected: the server is gone.
            Exception: as for `ReplayServer.sample`.
        """
        answer = self._background.call(self._visitor.ask, SampleMsg(batch_size=batch_size), timeout)
        if isinstance(answer, RefusedMsg):
            answer.throw()
        sampled: SampledUnion = answer.sampled
        return sampled.padded(self._fields)

    def update(self, sampled: SampledUnion, priorities: NDArray[np.floating[Any]]) -> None:
        """Give new priorities (B,) to a batch; see `ReplayServer.update`.

        Raises:
            Disconnected: the server is gone.
            Exception: as for `ReplayServer.update`.
        """
        check_priorities(priorities, len(sampled.whose))
        self._told(
            UpdateMsg(
                clients=sampled.names,
                whose=sampled.whose,
                indices=sampled.indices,
                generations=sampled.generations,
                priorities=priorities.astype(np.float64),
            )
        )

    def publish(self, topic: str, data: bytes, *, timeout: float | None = None) -> None:
        """Send bytes to all who have subscribed to a topic; see `ReplayServer.publish`.

        Raises:
            Disconnected: the server is gone.
            Exception: as for `ReplayServer.publish`.
        """
        self._told(PublishMsg(topic=topic, data=np.frombuffer(data, np.uint8)), timeout)

    def subscribe(self, topic: str, *, high_water: int = 1, when_full: Policy = "drop_oldest") -> Subscription:
        """Hear what is published on a topic, the newest from before first. By default only the newest waits to be read.

        Raises:
            ValueError: the high-water mark or the policy is none.
            Disconnected: the server is gone.
            Closed: the client is closed, or has given its server up.
        """
        subscription = Subscription(topic, high_water, when_full, self._background.check_open)
        self._background.call(self._visitor.subscribe, subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Hear no more of a topic.

        Raises:
            Disconnected: the server is gone.
            Closed: the client is closed, or has given its server up.
        """
        if self._visitor.subscriptions.get(subscription.topic) is subscription:
            del self._visitor.subscriptions[subscription.topic]
            self._told(UnsubscribeMsg(topic=subscription.topic, agent=self._visitor.me))

    def log(self, text: str) -> None:
        """Add a line to the server's log file, at most 64 KiB.

        Raises:
            InvalidExperience: the server has none, or the line is too long.
            Disconnected: the server is gone.
            Closed: the client is closed, or has given its server up.
        """
        if len(text) > 1 << 16:
            raise InvalidExperience(f"log: expected at most {1 << 16} characters, got {len(text)}")
        self._told(LineMsg(client=self.name, text=text))

    def save(self, path: str | Path) -> None:
        """Write the memory that is kept here to a file, as it is now, while other threads and the server go on with it.

        Raises:
            InvalidExperience: the server keeps it.
            OSError: it cannot be written; what was there before stays.
            Closed: the client is closed, or has given its server up.
        """
        self.flush()
        self._background.call(self._visitor.save, path)

    def load(self, path: str | Path) -> None:
        """Take over what `save` wrote; what was held before is gone.

        Raises:
            InvalidExperience: the server keeps the memory.
            CheckpointError: it is of another layout, or damaged; the message names the field. Nothing has changed then.
            OSError: there is no such file.
            Closed: the client is closed, or has given its server up.
        """
        self.flush()
        self._background.call(self._visitor.load, path)

    def statistics(self) -> ClientStatistics:
        """Return how it is doing; after `close`, how it was."""
        outbox = self._outbox
        return ClientStatistics(
            connected=self._visitor.desk is not None,
            connections=self._visitor.search.connections,
            added=outbox.added,
            inserted=outbox.done,
            waiting=outbox.waiting,
            dropped=outbox.dropped,
            refused=outbox.refused,
            pushed=self._visitor.pushed,
            held=self._visitor.held,
        )

    def close(self, *, timeout: float = 5.0) -> None:
        """Flush for up to `timeout` seconds, leave, and end the thread. Closing again does nothing."""
        with suppress(TimeoutError, RuntimeError):  # closed already, or it has failed: whoever used it was told
            self.flush(timeout=timeout)
        self._background.close()

    def __enter__(self) -> Self:
        self._background.check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(timeout=0.0 if kind else 5.0)

    def __repr__(self) -> str:
        return f"<ReplayClient {self.name} of {self.address}>"

    def _told(self, message: Request[Any], timeout: float | None = None) -> None:
        answer = self._background.call(self._visitor.ask, message, timeout)
        if isinstance(answer, RefusedMsg):
            answer.throw()
