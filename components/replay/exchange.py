"""What waits for what in a replay server: inserts for samples, samples for inserts and for what clients have to push.

All of it belongs to one event loop, and knows nothing of a network: a holder is whoever has a client's memory.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from components.replay.forms import Rows
from components.replay.high_water import Full
from components.replay.invalid import InvalidExperience, UnknownClient, check_priorities
from components.replay.layout import AnyLayout, Memory
from components.replay.limiter import SampleToInsertRatio
from components.replay.two_phase import NotPushed, Route, SampledUnion, Share, TwoPhaseReplay
from orchestra import OrchestraError, log


class Holder(Protocol):
    """Has a client's memory."""

    async def share(self, n: int) -> Share:
        """Draw `n` items."""

    async def update(self, route: Route) -> None:
        """Set priorities of items that were drawn."""


class LocalHolder:
    """A memory that the server keeps for a client."""

    def __init__(self, layout: AnyLayout, memory: Memory, rng: np.random.Generator) -> None:
        self.memory = memory
        self._layout, self._rng = layout, rng

    async def share(self, n: int) -> Share:
        return self._layout.share(self.memory, n, self._rng)

    async def update(self, route: Route) -> None:
        self.memory.update(*route)


@dataclass(slots=True)
class _Member:
    holder: Holder
    admitted: int = 0
    """Entries that the limiter has counted for it."""
    asked: bool = False
    """Whether it was asked to push, and has not yet."""
    inserted_bytes: int = 0
    """Bytes of all entries that it has inserted, as far as it has told."""


class Exchange:
    """The union of all clients' memories, and who waits for it.

    Args:
        layout: what is kept.
        limiter: paces inserts, counted in entries, and samples, counted in items.
        rng: draws.
        beta: as for `TwoPhaseReplay`, like the next two.
        max_items: items of one client that are held, and of a batch, at most.
        max_uses: how often an item that was pushed once may be drawn.
        ahead: ask clients for the next batch as soon as one is drawn. It is there sooner then, and made of weights as
            they were before the priorities of this one came.
        max_waiting: batches that may be waited for at a time; one more is refused.

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
        ahead: bool,
        max_waiting: int,
    ) -> None:
        if max_waiting < 1:
            raise ValueError(f"max_waiting: expected at least 1, got {max_waiting}")
        if limiter is not None:
            limiter.may_insert(layout.chunk)
        self.layout, self.limiter, self.rng, self.ahead, self.max_waiting = layout, limiter, rng, ahead, max_waiting
        self.union = TwoPhaseReplay(layout.share_fields, beta=beta, max_items=max_items, max_uses=max_uses)
        self.lost_updates = 0
        """Priorities that came too late: their client had left."""
        self.refused = 0
        """Requests that were refused since too many waited."""
        self._form, self._weigh = layout.form(), layout.memory().priorities.weigh
        self._gone_bytes = 0
        self._members: dict[str, _Member] = {}
        self._entering = asyncio.Lock()
        self._leaving = asyncio.Lock()
        self._waiting = 0
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._log = log.get(actor="replay")

    # Who is there ---------------------------------------------------------------------------------------------------

    def __contains__(self, client: str) -> bool:
        return client in self._members

    def join(self, client: str, holder: Holder) -> None:
        """Admit a client.

        Raises:
            NameTaken: there is one of this name.
        """
        self.union.join(client)
        self._members[client] = _Member(holder)

    def leave(self, client: str) -> None:
        """Forget a client, and what it pushed.

        Raises:
            UnknownClient: there is none of this name.
        """
        self.union.leave(client)
        gone = self._members.pop(client)
        self._gone_bytes += gone.inserted_bytes
        if self.limiter is not None:
            self.limiter.delete(gone.admitted)
        self._move()

    def holder(self, client: str) -> Holder:
        """Return who has a client's memory.

        Raises:
            UnknownClient: there is no client of this name.
        """
        return self._known(client).holder

    @property
    def inserted_bytes(self) -> int:
        """Bytes of all entries that clients have inserted, as far as they have told."""
        return self._gone_bytes + sum(member.inserted_bytes for member in self._members.values())

    def _known(self, client: str) -> _Member:
        if client not in self._members:
            raise UnknownClient(f"client: expected one that has joined, {list(self._members)}, got {client!r}")
        return self._members[client]

    # Inserting ------------------------------------------------------------------------------------------------------

    async def admit(self, client: str, n: int) -> None:
        """Wait until a client may insert `n` entries, in the order in which clients asked, and count them.

        Raises:
            UnknownClient: there is none of this name, or it has left meanwhile.
            ValueError: so many never may.
        """
        self._known(client)
        async with self._entering:
            if self.limiter is not None:
                while not self.limiter.may_insert(n):
                    await self._change()
                self._known(client).admitted += n
                self.limiter.insert(n)
                self._move()

    async def insert(self, client: str, rows: Rows, priorities: NDArray[np.float64]) -> None:
        """Insert entries into a memory that is kept here, once they may be.

        Raises:
            UnknownClient: there is none of this name.
            InvalidExperience: the memory would refuse them; or the client's memory is not here. Nothing is inserted.
            ValueError: they are more than may ever be inserted at a time.
        """
        holder = self.holder(client)
        if not isinstance(holder, LocalHolder):
            raise InvalidExperience(f"client: expected one whose memory is kept by the server, got {client!r}")
        n = self._form.check_many(rows)
        given = priorities if len(priorities) else None
        if given is not None:
            self._weigh(given, n)
        await self.admit(client, n)
        self.layout.insert(holder.memory, rows, given)
        self._known(client).inserted_bytes += sum(array.nbytes for array in rows.values())
        self.tell(client, await holder.share(0))

    def tell(self, client: str, share: Share, inserted_bytes: int | None = None) -> None:
        """Take what a client pushed, or how much it holds, and maybe how many bytes it has inserted.

        Raises:
            InvalidExperience: as for `TwoPhaseReplay.add`; nothing is taken.
        """
        member = self._known(client)
        self.union.add(client, share)
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
        """Draw a batch from the union of all memories, once there is enough and the limiter allows.

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
        while self.limiter is not None and not self.limiter.may_sample(batch_size):
            await self._change()
        while self._ask(batch_size):
            await self._change()
        sampled = self.union.sample(batch_size, self.rng)
        sampled = replace(sampled, batch=self.layout.cut(sampled.batch))
        if self.limiter is not None:
            self.limiter.sample(batch_size)
            self._move()
        if self.ahead:
            self._ask(batch_size)
        return sampled

    def _ask(self, batch_size: int) -> bool:
        """Ask clients for what is missing; return whether anything is."""
        try:
            missing = self.union.missing(batch_size, self.rng)
        except NotPushed:
            return True
        for client, n in missing.items():
            member = self._members[client]
            if not member.asked:
                member.asked = True
                self._start(self._fetch(client, member, n))
        return bool(missing)

    async def _fetch(self, client: str, member: _Member, n: int) -> None:
        try:
            share = await member.holder.share(n)
            if self._members.get(client) is member:
                if share.total > 0 and not len(share.indices):
                    raise InvalidExperience(f"batch: expected {n} items of {client!r}, got none")
                self.tell(client, share)
        except (InvalidExperience, OrchestraError) as error:
            if self._members.get(client) is member:
                self._log.warning(
                    "a client is dismissed: what it was asked for did not come", client=client, reason=str(error)
                )
                self.leave(client)
        finally:
            member.asked = False
            self._move()

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
            InvalidExperience: as for `TwoPhaseReplay.route`; or sums would overflow. Nothing has changed then.
        """
        self.check_priorities(priorities, len(sampled.clients))
        routes = self.union.route(sampled, priorities)
        self.lost_updates += len(priorities) - sum(len(indices) for indices, _, _ in routes.values())
        for client, route in routes.items():
            self._start(self._route(client, self._members[client].holder, route))

    def check_priorities(self, priorities: NDArray[np.floating[Any]], n: int) -> None:
        """Check what is handed to `update` for a batch of `n`; any thread may.

        Raises:
            InvalidExperience: they are not n floats that are finite and at least 0; or sums would overflow.
        """
        check_priorities(priorities, n)
        self._weigh(priorities, n)

    async def _route(self, client: str, holder: Holder, route: Route) -> None:
        try:
            await holder.update(route)
            if isinstance(holder, LocalHolder) and client in self._members:
                self.tell(client, await holder.share(0))  # what clients keep they tell of by themselves
        except (OrchestraError, InvalidExperience) as error:
            self.lost_updates += len(route[0])
            self._log.info("priorities were lost", client=client, reason=str(error))

    # Inside ---------------------------------------------------------------------------------------------------------

    def pace(self, limiter: SampleToInsertRatio | None) -> None:
        """Go on with another limiter; it takes the counts of the one before over."""
        if limiter is not None:
            limiter.may_insert(self.layout.chunk)
            if self.limiter is not None:
                limiter.take_over(self.limiter)
        self.limiter = limiter
        self._move()

    async def _change(self) -> None:
        await self._changed.wait()

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
