"""Coordinator of a replay server: inserting, sampling and pacing, over the union of all clients' replay buffers.

It belongs to one event loop and uses no network: a `BufferOwner` stands for a client that keeps its own buffer.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.replay_buffers.federated import ClientSample, FederatedReplay, NotPushed, Route, SampledUnion
from components.replay_buffers.invalid import InvalidExperience, UnknownClient
from components.replay_buffers.limiter import SampleToInsertRatio
from components.replay_server.bounded_queue import Full
from components.replay_server.layouts import AnyBuffer, AnyLayout
from components.replay_server.loop_thread import Signal
from components.replay_server.members import BufferOwner, RemoteBuffer, ServerBuffer, update_priorities
from components.replay_server.schemas import Rows
from orchestra import OrchestraError, log


class Coordinator:
    """The union of all clients' replay buffers, and the requests that wait for it.

    Args:
        layout: layout of the buffers.
        new_union: returns an empty union, of the layout's `sample_fields`.
        limiter: paces inserts, counted in entries, and samples, counted in items; None does not pace.
        rng: random numbers of all draws here.
        ahead: batches requested from clients in advance of the one being sampled. They arrive sooner, but are drawn by
            priorities from before the updates of the batches in between.
        max_waiting: sample requests that may wait; one more is refused.
        max_left: buffers kept here of clients that have left; beyond that, the buffer of the client that left first is
            dropped.
        folder: directory of the disk for buffers kept here; by default they are in memory.

    Raises:
        ValueError: an argument is out of its range, or chunks of the layout and samples could wait for each other.
    """

    def __init__(
        self,
        layout: AnyLayout,
        new_union: Callable[[], FederatedReplay],
        *,
        rng: np.random.Generator,
        limiter: SampleToInsertRatio | None = None,
        ahead: int = 0,
        max_waiting: int = 64,
        max_left: int = 64,
        folder: str | Path | None = None,
    ) -> None:
        for name, number, least in (("max_left", max_left, 0), ("max_waiting", max_waiting, 1), ("ahead", ahead, 0)):
            if number < least:
                raise ValueError(f"{name}: expected at least {least}, got {number}")
        if limiter is not None:
            limiter.check_sizes(insert_size=layout.chunk)
        self.layout, self.limiter, self.rng, self.ahead, self.max_waiting = layout, limiter, rng, ahead, max_waiting
        self._new_union, self.union = new_union, new_union()
        self.max_left, self._folder = max_left, folder
        self.schema = layout.schema()
        """Checks entries and priorities."""
        self.lost_updates = 0
        """Priorities that arrived after their client had left."""
        self.refused = 0
        """Sample requests refused because too many waited."""
        self.received_bytes = 0
        """Bytes of the items sent by clients that keep their own buffers."""
        self._gone_bytes = self._waiting = 0
        self._members: dict[str, RemoteBuffer | ServerBuffer] = {}
        self._left: dict[str, None] = {}  # clients in the order in which they left
        self._entering, self._leaving = asyncio.Lock(), asyncio.Lock()
        self._changed = Signal()
        self._tasks: set[asyncio.Task[None]] = set()
        self._log = log.get(actor="replay")

    def __contains__(self, client: str) -> bool:
        return client in self._members and client not in self._left

    @property
    def left(self) -> tuple[str, ...]:
        """Clients that have left and whose buffer is kept here, in the order in which they left."""
        return tuple(self._left)

    def join(self, client: str, owner: BufferOwner | None = None) -> None:
        """Add a client that keeps its own buffer; without `owner` one whose buffer is kept here.

        The latter continues with the buffer that it left here, or gets an empty one.

        Raises:
            NameTaken: a client of this name has joined.
            Full: there is no space for its buffer.
        """
        if owner is None and client in self._left:
            del self._left[client]
            return
        member = ServerBuffer(self.new_buffer()) if owner is None else RemoteBuffer(owner)
        self.union.join(client)
        self._members[client] = member

    def new_buffer(self) -> AnyBuffer:
        """Return an empty buffer, on the disk of `folder` if there is one.

        Raises:
            Full: there is no space for it on the disk.
        """
        try:
            return self.layout.new_buffer(self._folder)
        except OSError as error:
            raise Full(f"folder: expected space for the replay buffer of one more client, got {error}") from error

    def leave(self, client: str) -> None:
        """Remove a client. A buffer that is kept here stays, and is sampled from.

        Raises:
            UnknownClient: no client of this name has joined, or it has left.
        """
        if client in self._left:
            raise UnknownClient(f"client: expected one that is here, got {client!r}, which has left")
        if isinstance(self.member(client), RemoteBuffer):
            self.forget(client)
        else:
            self._left[client] = None
            self._drop_surplus()

    def _drop_surplus(self) -> None:
        while len(self._left) > self.max_left:
            self.forget(next(iter(self._left)))

    def forget(self, client: str) -> None:
        """Remove a client, the items that it sent, and its buffer.

        Raises:
            UnknownClient: no client of this name has joined.
        """
        self.union.leave(client)
        self._left.pop(client, None)
        gone = self._members.pop(client)
        self._gone_bytes += gone.inserted_bytes
        if self.limiter is not None:
            self.limiter.delete(gone.admitted)
        self._changed.notify()

    def member(self, client: str) -> RemoteBuffer | ServerBuffer:
        """Return a client's buffer, kept here or by the client.

        Raises:
            UnknownClient: no client of this name has joined.
        """
        if client not in self._members:
            raise UnknownClient(f"client: expected one that has joined, {list(self._members)}, got {client!r}")
        return self._members[client]

    @property
    def inserted_bytes(self) -> int:
        """Bytes of all entries that clients have inserted, as last reported."""
        return self._gone_bytes + sum(member.inserted_bytes for member in self._members.values())

    async def admit(self, client: str, n: int) -> None:
        """Wait until a client may insert `n` entries, in the order of requests, and count them.

        Raises:
            UnknownClient: no client of this name has joined, or it has left meanwhile.
            InvalidExperience: `n` is below 1.
            ValueError: the limiter never admits `n` entries at a time.
        """
        self.member(client)
        if n < 1:
            raise InvalidExperience(f"n: expected at least 1, got {n}")
        async with self._entering:
            await self._admit(client, n)

    async def _admit(self, client: str, n: int) -> None:
        if self.limiter is not None:
            while not self.limiter.may_insert(n):
                await self._changed.wait()
            self.member(client).admitted += n
            self.limiter.insert(n)
            self._changed.notify()

    async def insert(
        self,
        client: str,
        rows: Rows,
        priorities: NDArray[np.float64],
        writer: int = 0,
        number: int = -1,
        sizes: Sequence[int] = (),
    ) -> None:
        """Insert entries into a buffer that is kept here, once the limiter admits them.

        Args:
            client: owner of the buffer.
            rows: the entries.
            priorities: (N,), or none.
            writer: number of the client object that inserts.
            number: serial number of the first chunk. A chunk that was inserted before is skipped; if below 0, none is.
            sizes: entries of each chunk, if there are several. Each chunk is admitted, or refused, separately; the call
                raises the first refusal after the last chunk.

        Raises:
            UnknownClient: no client of this name has joined.
            InvalidExperience: entries or priorities are malformed, or the client keeps its own buffer.
            ValueError: the limiter never admits that many entries at a time.
        """
        member, chunks = self._server_buffer(client), self.schema.split(rows, priorities, sizes)
        async with self._entering:
            if self.limiter is None and not member.has(writer, number):
                last = number if number < 0 else number + max(len(sizes), 1) - 1
                try:
                    self._write(client, rows, priorities, writer, last)
                    return
                except InvalidExperience:
                    if len(sizes) < 2:
                        raise
            refused: ValueError | None = None
            for some, given in chunks:
                try:
                    if not self._server_buffer(client).has(writer, number):
                        if self.limiter is not None:
                            await self._admit(client, self.schema.check(some, given if len(given) else None))
                        self._write(client, some, given, writer, number)
                except ValueError as error:  # an InvalidExperience, or more than the limiter ever admits
                    refused = refused or error
                number += number >= 0
            if refused is not None:
                raise refused

    def _write(self, client: str, rows: Rows, priorities: NDArray[np.float64], writer: int, number: int) -> None:
        """Insert entries that were admitted; all of them, or none if they are malformed."""
        member = self._server_buffer(client)
        self.layout.insert(member.buffer, rows, priorities if len(priorities) else None)
        if number >= 0:
            member.writer, member.number = writer, number
        member.inserted_bytes += sum(array.nbytes for array in rows.values())
        self._draw_here(client, member, 0)

    def _server_buffer(self, client: str) -> ServerBuffer:
        member = self.member(client)
        if not isinstance(member, ServerBuffer):
            raise InvalidExperience(f"client: expected one whose replay buffer the server keeps, got {client!r}")
        return member

    def receive(
        self, client: str, sample: ClientSample, inserted_bytes: int | None = None, *, trusted: bool = False
    ) -> None:
        """Add the items that a client drew, maybe none; record how much it holds, and maybe how much it has inserted.

        A `trusted` sample is not checked, because it was drawn here.

        Raises:
            UnknownClient: no client of this name has joined.
            InvalidExperience: as for `FederatedReplay.add`; nothing is added.
        """
        member = self.member(client)
        if inserted_bytes is not None and inserted_bytes < 0:
            raise InvalidExperience(f"inserted_bytes: expected at least 0, got {inserted_bytes}")
        self.union.add(client, sample, trusted=trusted)
        if inserted_bytes is not None:
            member.inserted_bytes = inserted_bytes
        if self.limiter is not None and sample.held > member.admitted:
            # The client brought a filled buffer. Its entries count as sampled at the wanted ratio.
            brought, member.admitted = sample.held - member.admitted, sample.held
            self.limiter.insert(brought)
            self.limiter.sample(round(brought * self.limiter.samples_per_insert))
        self._changed.notify()

    def _draw_here(self, client: str, member: ServerBuffer, n: int) -> None:
        """Draw `n` items of a buffer that is kept here, maybe none, for the union."""
        self.receive(client, self.layout.draw(member.buffer, n, self.rng), trusted=True)

    async def sample(self, batch_size: int, within: float | None = None) -> SampledUnion:
        """Draw a batch as `FederatedReplay.draw` does, once there are items and the limiter allows it.

        Raises:
            ValueError: `batch_size` is out of its range, or such samples and inserts could wait for each other.
            Full: too many requests wait.
            TimeoutError: there was no batch within `within` seconds; the message says what was missing.
        """
        if not 1 <= batch_size <= self.union.max_items:
            raise ValueError(f"batch_size: expected 1 to {self.union.max_items}, which is max_items, got {batch_size}")
        if self.limiter is not None:
            self.limiter.check_sizes(insert_size=self.layout.chunk, sample_size=batch_size)
        if self._waiting >= self.max_waiting:
            self.refused += 1
            raise Full(f"sample: expected fewer than {self.max_waiting} batches to be waited for, max_waiting")
        self._waiting += 1
        try:
            async with asyncio.timeout(within), self._leaving:
                return await self._sample(batch_size)
        except TimeoutError:
            raise TimeoutError(f"no batch of {batch_size} within {within} s: {self._lacking(batch_size)}") from None
        finally:
            self._waiting -= 1

    async def _sample(self, batch_size: int) -> SampledUnion:
        while (self.limiter is not None and not self.limiter.may_sample(batch_size)) or self._request(batch_size):
            await self._changed.wait()
        sampled = self.union.draw(batch_size, self.rng)
        if self.limiter is not None:
            self.limiter.sample(batch_size)
            self._changed.notify()
        if self.ahead:
            self._request(min(self.ahead * batch_size, self.union.max_items))
        return sampled

    def _request(self, batch_size: int) -> bool:
        """Request the missing items of a batch; return whether any item is missing now."""
        try:
            missing = self.union.missing(batch_size, self.rng)
        except NotPushed:
            return True
        here = False
        for client, n in missing.items():
            member = self._members[client]
            if isinstance(member, ServerBuffer):
                here = True
                self._draw_here(client, member, n)
            elif not member.asked:
                member.asked = True
                self._start(self._fetch(client, member, n))
        return self._request(batch_size) if here else bool(missing)

    async def _fetch(self, client: str, member: RemoteBuffer, n: int) -> None:
        """Send a client its waiting priorities, and request `n` items; remove a client that does not send them."""
        route = member.take_route()
        try:
            sample, refused = await member.owner.draw(n, route)
            self.received_bytes += sample.n_bytes
            if self._members.get(client) is member:
                if n and sample.total > 0 and not len(sample.indices):
                    raise InvalidExperience(f"batch: expected {n} items of {client!r}, got none")
                self.receive(client, sample)
        except (InvalidExperience, OrchestraError) as error:
            refused = str(error)
            if n and self._members.get(client) is member:
                self._log.warning("removing a client that did not send items", client=client, reason=refused)
                self.forget(client)
        finally:
            if n:
                member.asked = False
                self._changed.notify()
        self._count_lost(client, route, refused)

    def _lacking(self, batch_size: int) -> str:
        if self.limiter is not None and not self.limiter.may_sample(batch_size):
            return f"the limiter does not allow it, {self.limiter!r}"
        try:
            missing = self.union.missing(batch_size, self.rng)
        except NotPushed:
            return f"no item has weight, with {len(self._members)} clients"
        return f"earlier requests came first; clients have yet to send {missing}"

    def update(self, sampled: SampledUnion, priorities: NDArray[np.floating[Any]]) -> None:
        """Set new priorities (B,) of a batch, where its items are kept, before anything else is drawn there.

        Raises:
            InvalidExperience: they are not B floats that are finite and at least 0, or sums would overflow. Nothing
                has changed then.
        """
        self.schema.check_priorities(priorities, len(sampled.whose))
        self.route(sampled, priorities)

    def route(self, sampled: SampledUnion, priorities: NDArray[np.floating[Any]]) -> None:
        """Set new priorities as `update` does, without checks."""
        routes = self.union.route(sampled, priorities)
        self.lost_updates += len(priorities) - sum(len(indices) for indices, _, _ in routes.values())
        for client, route in routes.items():
            member = self._members[client]
            if isinstance(member, ServerBuffer):
                self._count_lost(client, route, update_priorities(member.buffer, route))
                self._draw_here(client, member, 0)
            else:
                member.routes.append(route)
                self._start(self._send_priorities(client, member))

    async def _send_priorities(self, client: str, member: RemoteBuffer) -> None:
        """Send priorities, unless a sample request follows at once: its draw then carries them."""
        for _ in range(2):
            await asyncio.sleep(0)
        if member.routes:
            await self._fetch(client, member, 0)

    def _count_lost(self, client: str, route: Route, refused: str) -> None:
        if refused and len(route[0]):
            self.lost_updates += len(route[0])
            self._log.info("priorities were lost", client=client, reason=refused)

    def buffers(self) -> dict[str, ServerBuffer]:
        """Return the buffers kept here by client; first those of clients that have left, in the order of leaving."""
        names = [*self._left, *(name for name in self._members if name not in self._left)]
        return {name: it for name in names if isinstance(it := self._members[name], ServerBuffer)}

    def replace_buffers(self, buffers: Mapping[str, ServerBuffer], *, counted: bool) -> None:
        """Replace all buffers that are kept here.

        A connected client continues with the buffer of its name, or with an empty one; all other clients count as left.
        `counted` says that the limiter is restored too; otherwise all entries count as brought by their clients.
        """
        here = [name for name in self._members if name in self]
        if self.limiter is not None:
            self.limiter.delete(sum(member.admitted for member in self._members.values()))
        self.union, self._members, self._gone_bytes = self._new_union(), {}, 0
        self._left = {name: None for name in buffers if name not in here}
        for name in (*buffers, *(name for name in here if name not in buffers)):
            member = buffers.get(name) or ServerBuffer(self.new_buffer())
            if not counted:
                member.admitted = 0
            self.union.join(name)
            self._members[name] = member
            self._draw_here(name, member, 0)
        self._drop_surplus()
        self._changed.notify()

    def pace(self, limiter: SampleToInsertRatio | None) -> None:
        """Replace the limiter; the new one gets the counts of the old one.

        Raises:
            ValueError: chunks and samples could wait for each other. The old one stays.
        """
        if limiter is not None:
            limiter.check_sizes(insert_size=self.layout.chunk)
            if self.limiter is not None:
                limiter.take_over(self.limiter)
        self.limiter = limiter
        self._changed.notify()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel the requests to clients."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
