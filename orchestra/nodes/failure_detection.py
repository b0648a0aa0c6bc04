"""Failure detection: heartbeats, repeated dialling of broken links, and the decision that a peer is dead."""

import asyncio
import itertools
import math
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestra.errors import HandshakeError, NobodyListens, Unreachable
from orchestra.nodes.dialling import DIAL_S, Dialler, backoff, cancel_all
from orchestra.wire.handshake import ANSWER_SECONDS
from orchestra.wire.link import Link
from orchestra.wire.settings import LinkSettings

HEARTBEAT_S = 2.0
SILENT_BEATS = 3
"""A connection that was silent for this many heartbeats is broken and replaced. Beats are counted, not seconds: a node
that was itself busy for a minute has read nothing meanwhile, although its peers may be well."""
REFUSALS = 4
"""A peer is dead if no process listens at its address this many times in a row: about a third of a second."""
REMEMBERED_BEATS = 5
ABSENT_BEATS = SILENT_BEATS + 1 + math.ceil((DIAL_S + ANSWER_SECONDS) / HEARTBEAT_S)
"""A peer without a connection for this many heartbeats is dead. One side may see a connection end while the other side
notices only the silence, at the latest a heartbeat after `SILENT_BEATS`. It then has time for the longest attempt."""


@dataclass(eq=False, repr=False)
class FailureDetection:
    """Ends the links of dead peers, and repairs the broken links of living ones.

    A peer is alive as long as its session is. The side that dialled dials again when a connection breaks. The other
    side waits for that, and checks meanwhile whether a process still listens at the peer's address.
    """

    settings: LinkSettings
    dialler: Dialler
    sessions: Mapping[bytes, Link]
    """The node's links, by session."""
    reconnect: Callable[[Link], Coroutine[Any, Any, None]]
    """Opens a new connection for a link that this node dialled."""
    checkable: Callable[[Link], str]
    """Returns the address at which the peer of a link can be checked; empty if there is none."""
    on_beat: Callable[[], None]
    """Called at every heartbeat."""
    _heart: asyncio.Task[None] | None = field(default=None, init=False)
    _repairs: dict[Link, asyncio.Task[None]] = field(default_factory=dict, init=False)
    _lags: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED_BEATS), init=False)

    @property
    def lag_s(self) -> float:
        """The longest delay of the loop at one of the last heartbeats, in seconds."""
        return max(self._lags, default=0.0)

    def start(self) -> None:
        """Begin the heartbeats."""
        self._heart = asyncio.create_task(self._beat(), name=f"{self.settings.name}: heartbeat")

    async def stop(self) -> None:
        """End the heartbeats and all repairs."""
        await cancel_all(*self._repairs.values(), *([self._heart] if self._heart is not None else []))

    def repair(self, link: Link) -> None:
        """Dial the peer again, or check that it lives while it should be dialling."""
        name = f"{self.settings.name}: find {link.peer}"
        task = self._repairs[link] = asyncio.create_task(self._find(link), name=name)

        def over(done: asyncio.Task[None]) -> None:
            if self._repairs.get(link) is done:
                del self._repairs[link]
            if not done.cancelled() and (error := done.exception()) is not None:
                link.end(error if isinstance(error, Exception) else RuntimeError(repr(error)))

        task.add_done_callback(over)

    def end_repair(self, link: Link) -> None:
        """Cancel the repair of a link, unless this is the task that does it."""
        repair = self._repairs.pop(link, None)
        if repair is not None and repair is not asyncio.current_task():
            repair.cancel()

    async def _find(self, link: Link) -> None:
        """Dial the peer of a broken link again; or, if the peer has dialled, check that a process listens there."""
        refused = 0
        for attempts in itertools.count():
            check_at = self.checkable(link)
            if not (link.address or check_at):
                return  # only the heartbeats can tell
            await asyncio.sleep(backoff(self.settings, attempts))
            try:
                if link.address:
                    await self.reconnect(link)
                    return
                await self.dialler.check(check_at)
                refused = 0
            except (HandshakeError, NobodyListens) as error:
                refused += 1
                if refused == REFUSALS or isinstance(error, HandshakeError):
                    link.end(error)
                    return
            except Unreachable:
                refused = 0  # a process may be there

    async def _beat(self) -> None:
        """Ping the peers; break silent connections, and end the links of absent peers."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + HEARTBEAT_S
            await asyncio.sleep(HEARTBEAT_S)
            self._lags.append(max(0.0, loop.time() - due))
            self.on_beat()
            self.settings.shared_memory.end_period()
            now = self.settings.clock.monotonic()
            for link in list(self.sessions.values()):
                if link.connected and not link.missed_beats:
                    link.heard_at = now
                link.missed_beats += 1
                if not link.connected:
                    if link.missed_beats > ABSENT_BEATS:
                        link.end(Unreachable(f"it did not come back within {ABSENT_BEATS * HEARTBEAT_S:g} s"))
                elif link.missed_beats > SILENT_BEATS:
                    link.interrupt(Unreachable(f"silent for {SILENT_BEATS * HEARTBEAT_S:g} s"))
                else:
                    link.ping()
