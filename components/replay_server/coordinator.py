"""What waits for what in a replay server: inserts for samples, samples for inserts and for what clients have to push.

All of it belongs to one event loop, and knows nothing of a network: a holder is whoever has a client's memory.
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.replay_buffers.federated import ClientSample, FederatedReplay, NotPushed, Route, SampledUnion
from components.replay_buffers.invalid import InvalidExperience, UnknownClient
from components.replay_buffers.limiter import SampleToInsertRatio
from components.replay_server.bounded_queue import Full
from components.replay_server.gate import Gate
from components.replay_server.layouts import AnyLayout, Memory
from components.replay_server.members import Holder, Kept, LocalHolder, Member, new_memory
from components.replay_server.schemas import Rows
from orchestra import OrchestraError, log


class Exchange:
    """The union of all clients' memories, and who waits for it.

    Args:
        layout: what is kept.
        limiter: paces inserts, counted in entries, and samples, counted in items.
        rng: draws.
        beta: as for `FederatedReplay`, like the next two.
        max_items: items of one client that are held, and of a batch, at most.
        max_uses: how often an item that was pushed once may be drawn.
        ahead: for how many batches more clients are asked whenever one is drawn. They are there sooner then, and made
            of weights as they were before the priorities of those before them came.
        max_waiting: batches that may be waited for at a time; one more is refused.
        max_left: memories kept here of clients that have left; of more, the one goes whose client left first.
        folder: on whose disk memories are that are kept here; by default they are in memory.

    Raises:
        ValueError: an argument is out of its range, or the limiter would never let a chunk of the layout in.
    """

    def __init__(
        self,
        layout: AnyLayout,
        *,
        limiter: SampleToInsertRatio | None,
        rng: np.random.Generator,
        beta: float,
        max_items: int,
        max_uses: int,
        ahead: int,
        max_waiting: int,
        max_left: int = 64,
        folder: str | Path | None = None,
    ) -> None:
        for name, number, least in (("max_left", max_left, 0), ("max_waiting", max_waiting, 1), ("ahead", ahead, 0)):
            if number < least:
                raise ValueError(f"{name}: expected at least {least}, got {number}")
        if limiter is not None:
            limiter.may_insert(layout.chunk)
        self.layout, self.limiter, self.rng, self.ahead, self.max_waiting = layout, limiter, rng, ahead, max_waiting
        self._new_union = partial(
            FederatedReplay, layout.share_fields, beta=beta, max_items=max_items, max_uses=max_uses
        )
        self.union, self.max_left, self._folder = self._new_union(), max_left, folder
        self.lost_updates = 0
        """Priorities that came too late: their client had left."""
        self.refused = 0
        """Requests that were refused since too many waited."""
        self.gate = Gate(layout)
        """Checks what comes."""
        self._gone_bytes = self._waiting = 0
        self._members: dict[str, Member] = {}
        self._left: dict[str, None] = {}  # in the order in which they did
        self._entering, self._leaving = asyncio.Lock(), asyncio.Lock()
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._log = log.get(actor="replay")

    # Who is there ---------------------------------------------------------------------------------------------------

    def __contains__(self, client: str) -> bool:
        return client in self._members and client not in self._left

    @property
    def left(self) -> tuple[str, ...]:
        """Clients that have left and whose memory is kept here, the one first that left first."""
        return tuple(self._left)

    def join(self, client: str, holder: Holder | LocalHolder) -> None:
        """Admit a client.

        Raises:
            NameTaken: there is one of this name.
        """
        self.union.join(client)
        self._members[client] = Member(holder)

    def new_memory(self) -> Memory:
        """Return an empty memory, where those that are kept here are.

        Raises:
            Full: there is no room for it on the disk.
        """
        return new_memory(self.layout, self._folder)

    def enter(self, client: str) -> None:
        """Admit a client whose memory is kept here: the one that it left here, or an empty one.

        Raises:
            NameTaken: there is one of this name.
            Full: there is no room for its memory.
        """
        if client in self._left:
            del self._left[client]
        else:
            self.join(client, LocalHolder(self.layout, self.new_memory(), self.rng))

    def leave(self, client: str) -> None:
        """Let a client go. A memory that is kept here stays, and is drawn from.

        Raises:
            UnknownClient: there is none of this name, or it has left.
        """
        if client in self._left:
            raise UnknownClient(f"client: expected one that is here, got {client!r}, which has left")
        if not isinstance(self.holder(client), LocalHolder):
            self.forget(client)
            return
        self._left[client] = None
        while len(self._left) > self.max_left:
            self.forget(next(iter(self._left)))

    def forget(self, client: str) -> None:
        """Forget a client, what it pushed, and its memory.

        Raises:
            UnknownClient: there is none of this name.
        """
        self.union.leave(client)
        self._left.pop(client, None)
        gone = self._members.pop(client)
        self._gone_bytes += gone.inserted_bytes
        if self.limiter is not None:
            self.limiter.delete(gone.admitted)
        self._move()

    def holder(self, client: str) -> Holder | LocalHolder:
        """Return who has a client's memory.

        Raises:
            UnknownClient: there is no client of this name.
        """
        return self._known(client).holder

    @property
    def inserted_bytes(self) -> int:
        """Bytes of all entries that clients have inserted, as far as they have told."""
        return self._gone_bytes + sum(member.inserted_bytes for member in self._members.values())

    def _known(self, client: str) -> Member:
        if client not in self._members:
            raise UnknownClient(f"client: expected one that has joined, {list(self._members)}, got {client!r}")
        return self._members[client]

    # Inserting ------------------------------------------------------------------------------------------------------

    async def admit(self, client: str, n: int) -> None:
        """Wait until a client may insert `n` entries, in the order in which clients asked, and count them.

        Raises:
            UnknownClient: there is none of this name, or it has left meanwhile.
            InvalidExperience: `n` is below 1.
            ValueError: so many never may.
        """
        self._known(client)
        if n < 1:
            raise InvalidExperience(f"n: expected at least 1, got {n}")
        async with self._entering:
            await self._admit(client, n)

    async def _admit(self, client: str, n: int) -> None:
        if self.limiter is not None:
            while not self.limiter.may_insert(n):
                await self._changed.wait()
            self._known(client).admitted += n
            self.limiter.insert(n)
            self._move()

    async def insert(
        self,
        client: str,
        rows: Rows,
        priorities: NDArray[np.float64],
        writer: int = 0,
        number: int = -1,
        sizes: Sequence[int] = (),
    ) -> None:
        """Insert entries into a memory that is kept here, once they may be.

        Args:
            client: whose they are.
            rows: the entries.
            priorities: (N,), or none.
            writer: which object of the client's inserts,
            number: and which of its chunks the first of these is. One that has come is not inserted again: whoever sent
                it had lost the answer. With a number below 0 nothing is known of that.
            sizes: entries of each chunk, if they are several: as if these came one after the other, but for the answer,
                which waits for the last, and is of the first that is refused.

        Raises:
            UnknownClient: there is none of this name.
            InvalidExperience: the memory would refuse them; or the client's memory is not here. Nothing is inserted.
            ValueError: they are more than may ever be inserted at a time.
        """
        holder = self.holder(client)
        if not isinstance(holder, LocalHolder):
            raise InvalidExperience(f"client: expected one whose memory is kept by the server, got {client!r}")
        n = self.gate.check_chunks(rows, priorities, sizes)
        async with self._entering:
            if len(sizes) < 2 or (n and self.limiter is None and not self._known(client).has(writer, number)):
                last = number + max(len(sizes), 1) - 1 if number >= 0 else number
                await self._insert(client, rows, priorities, n, writer, last)  # nothing can come between them
                return
            refused: ValueError | None = None
            for some, given in self.gate.split(rows, priorities, sizes):
                try:
                    await self._insert(client, some, given, self.gate.check(some, given), writer, number)
                except ValueError as error:  # an InvalidExperience, or more than may ever be inserted
                    refused = refused or error
                number += number >= 0
            if refused is not None:
                raise refused

    async def _insert(
        self, client: str, rows: Rows, priorities: NDArray[np.float64], n: int, writer: int, number: int
    ) -> None:
        """Insert `n` entries that were checked, unless the chunk has come before."""
        if self._known(client).has(writer, number):
            return
        await self._admit(client, n)
        member, holder = self._known(client), self.holder(client)  # others, if all was taken back meanwhile
        assert isinstance(holder, LocalHolder)
        self.layout.insert(holder.memory, rows, priorities if len(priorities) else None)
        if number >= 0:
            member.writer, member.number = writer, number
        member.inserted_bytes += sum(array.nbytes for array in rows.values())
        self.tell(client, holder.share(0), trusted=True)

    def tell(
        self, client: str, share: ClientSample, inserted_bytes: int | None = None, *, trusted: bool = False
    ) -> None:
        """Take what a client pushed, or how much it holds, and maybe how many bytes it has inserted.

        Raises:
            InvalidExperience: as for `FederatedReplay.add`; nothing is taken.
        """
        member = self._known(client)
        if inserted_bytes is not None and inserted_bytes < 0:
            raise InvalidExperience(f"inserted_bytes: expected at least 0, got {inserted_bytes}")
        self.union.add(client, share, trusted=trusted)
        if inserted_bytes is not None:
            member.inserted_bytes = inserted_bytes
        if self.limiter is not None and share.held > member.admitted:
            # It has brought a memory along. The ratio is that of what happens here: neither owed nor ahead.
            brought, member.admitted = share.held - member.admitted, share.held
            self.limiter.insert(brought)
            self.limiter.sample(round(brought * self.limiter.samples_per_insert))
        self._move()

    # Sampling -------------------------------------------------------------------------------------------------------

    async def sample(self, batch_size: int, within: float | None = None) -> SampledUnion:
        """Draw a batch as `FederatedReplay.draw` does, once there is enough and the limiter allows.

        Raises:
            ValueError: `batch_size` is out of its range, or more than the limiter ever allows.
            Full: too many batches are waited for.
            TimeoutError: there was none within `within` seconds; the message says what was waited for.
        """
        if not 1 <= batch_size <= self.union.max_items:
            raise ValueError(f"batch_size: expected 1 to {self.union.max_items}, which is max_items, got {batch_size}")
        if self.limiter is not None:
            self.limiter.may_sample(batch_size)
        if self._waiting >= self.max_waiting:
            self.refused += 1
            raise Full(f"sample: expected fewer than {self.max_waiting} batches to be waited for, max_waiting")
        self._waiting += 1
        try:
            async with asyncio.timeout(within):
                async with self._leaving:
                    return await self._draw(batch_size)
        except TimeoutError:
            raise TimeoutError(f"no batch of {batch_size} within {within} s: {self._lack(batch_size)}") from None
        finally:
            self._waiting -= 1

    async def _draw(self, batch_size: int) -> SampledUnion:
        while (self.limiter is not None and not self.limiter.may_sample(batch_size)) or self._ask(batch_size):
            await self._changed.wait()
        sampled = self.union.draw(batch_size, self.rng)
        if self.limiter is not None:
            self.limiter.sample(batch_size)
            self._move()
        if self.ahead:
            self._ask(min(self.ahead * batch_size, self.union.max_items))
        return sampled

    def _ask(self, batch_size: int) -> bool:
        """Ask clients for what is missing; return whether anything is."""
        try:
            missing = self.union.missing(batch_size, self.rng)
        except NotPushed:
            return True
        here = False
        for client, n in missing.items():
            member = self._members[client]
            if isinstance(member.holder, LocalHolder):
                here = True
                self.tell(client, member.holder.share(n), trusted=True)
            elif not member.asked:
                member.asked = True
                self._start(self._fetch(client, member, member.holder, n))
        return self._ask(batch_size) if here else bool(missing)

    async def _fetch(self, client: str, member: Member, holder: Holder, n: int) -> None:
        """Have a client take over the priorities that are on their way to it, and then push `n` items."""
        route = member.take_route()
        try:
            share, refused = await holder.share(n, route)
            if self._members.get(client) is member:
                if n and share.total > 0 and not len(share.indices):
                    raise InvalidExperience(f"batch: expected {n} items of {client!r}, got none")
                self.tell(client, share)
        except (InvalidExperience, OrchestraError) as error:
            refused = str(error)
            if n and self._members.get(client) is member:
                self._log.warning("a client is dismissed, which did not push", client=client, reason=refused)
                self.forget(client)
        finally:
            if n:
                member.asked = False
                self._move()
        self._lose(client, route, refused)

    def _lack(self, batch_size: int) -> str:
        if self.limiter is not None and not self.limiter.may_sample(batch_size):
            return f"the limiter does not allow it, {self.limiter!r}"
        try:
            missing = self.union.missing(batch_size, self.rng)
        except NotPushed:
            return f"nothing is held that has weight, by {len(self._members)} clients"
        return f"others were before it; clients have yet to push {missing}"

    def update(self, sampled: SampledUnion, priorities: NDArray[np.floating[Any]]) -> None:
        """Send new priorities to those whose items they are of, where they come before what is asked of them next.

        Raises:
            InvalidExperience: as for `FederatedReplay.route`; or sums would overflow. Nothing has changed then.
        """
        self.gate.check_priorities(priorities, len(sampled.whose))
        self.route(sampled, priorities)

    def route(self, sampled: SampledUnion, priorities: NDArray[np.floating[Any]]) -> None:
        """Do as `update` does, with priorities that were checked."""
        routes = self.union.route(sampled, priorities)
        self.lost_updates += len(priorities) - sum(len(indices) for indices, _, _ in routes.values())
        for client, route in routes.items():
            member = self._members[client]
            if isinstance(member.holder, LocalHolder):
                self._lose(client, route, member.holder.update(route))
                self.tell(client, member.holder.share(0), trusted=True)
            else:
                member.routes.append(route)
                self._start(self._deliver(client, member, member.holder))

    async def _deliver(self, client: str, member: Member, holder: Holder) -> None:
        """Send priorities, unless whoever gave them asks for the next batch at once: they go with that."""
        for _ in range(2):
            await asyncio.sleep(0)
        if member.routes:
            await self._fetch(client, member, holder, 0)

    def _lose(self, client: str, route: Route | None, refused: str) -> None:
        if route is not None and refused:
            self.lost_updates += len(route[0])
            self._log.info("priorities were lost", client=client, reason=refused)

    # What is kept here ----------------------------------------------------------------------------------------------

    def kept(self) -> dict[str, Kept]:
        """Return the memories that are kept here by client; first those whose clients have left, in that order."""
        names = [*self._left, *(name for name in self._members if name not in self._left)]
        return {name: it for name in names if (it := self._members[name].kept) is not None}

    def take_back(self, kept: Mapping[str, Kept], *, counted: bool) -> None:
        """Keep these memories instead of those that there are.

        Clients that are here go on with those of their names, or with empty ones; the others have left.

        Args:
            kept: by client.
            counted: whether the limiter's counts will be those of `kept`; else all of it counts as brought along.
        """
        before, here = self._members, [name for name in self._members if name in self]
        if self.limiter is not None:
            self.limiter.delete(sum(member.admitted for member in before.values()))
        self.union, self._members, self._gone_bytes = self._new_union(), {}, 0
        self._left = {name: None for name in kept if name not in here}
        for name in (*kept, *(name for name in here if name not in kept)):
            it = kept.get(name) or Kept(self.new_memory())
            self.join(name, LocalHolder(self.layout, it.memory, self.rng))
            member = self._members[name]
            member.inserted_bytes, member.writer, member.number = it.inserted_bytes, it.writer, it.number
            if counted:
                member.admitted = it.admitted
            self.tell(name, self.layout.share(it.memory, 0, self.rng))
        while len(self._left) > self.max_left:
            self.forget(next(iter(self._left)))
        self._move()

    # Inside ---------------------------------------------------------------------------------------------------------

    def pace(self, limiter: SampleToInsertRatio | None) -> None:
        """Go on with another limiter; it takes the counts of the one before over."""
        if limiter is not None:
            limiter.may_insert(self.layout.chunk)
            if self.limiter is not None:
                limiter.take_over(self.limiter)
        self.limiter = limiter
        self._move()

    def _move(self) -> None:
        """Have all that wait look again."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Give up what is still asked of clients."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
