"""The other nodes that a node talks to: whom it dials, whom it lets in, who is still there, and who is gone."""

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from orchestra.envelope import is_guest, node_of
from orchestra.errors import HandshakeError, OrchestraError, Unreachable
from orchestra.link import Link
from orchestra.message import Message
from orchestra.ref import Ref
from orchestra.system import LinkStatistics, LookupMsg, WatchMsg
from orchestra.transport.base import Connection, Listener
from orchestra.transport.registry import transport_for

if TYPE_CHECKING:
    from orchestra.node import Node

DIRECTORY = "directory"
"""The name of the actor that says where nodes listen. It does nothing else, so that nothing else decides its order."""
HEARTBEAT_S = 2.0
SILENT_BEATS = 10
"""A peer that was not heard for so many heartbeats is taken for dead. Counted in beats, not in seconds: a node that was
itself busy for a minute has heard nobody meanwhile, and that is no fault of theirs."""
REMEMBERED_BEATS = 5
MAX_UNPROVEN = 64
"""Connections that have not proved themselves yet; one more is turned away."""


class Peers:
    """The connections of one node, and what depends on them.

    Args:
        node: whose they are.
        listen: where it lets others in; None if nowhere.
        join: where the root listens; None for the root itself.
    """

    def __init__(self, node: "Node", listen: str | None, join: str | None) -> None:
        self.listening = ""
        """Where others dial this node, once it is open."""
        self.root = node.name if join is None else ""
        """The name of the run's root, once it is known."""
        self._node = node
        self._listen = listen
        self._join = join
        self._links: dict[str, Link] = {}
        self._other_links: set[Link] = set()
        self._connecting: dict[str, asyncio.Task[Link]] = {}
        self._listener: Listener | None = None
        self._watched: dict[str, set[tuple[str, str]]] = {}
        self._heart: asyncio.Task[None] | None = None
        self._lags: deque[float] = deque(maxlen=REMEMBERED_BEATS)

    @property
    def names(self) -> tuple[str, ...]:
        """The nodes of the run that this one is connected to, sorted."""
        return tuple(sorted(peer for peer in self._links if not is_guest(peer)))

    @property
    def lag_s(self) -> float:
        """How much too late the loop came to a heartbeat, the worst of the last few."""
        return max(self._lags, default=0.0)

    def statistics(self) -> tuple[LinkStatistics, ...]:
        """Return how the connections to the nodes of the run are doing."""
        return tuple(self._links[name].statistics() for name in self.names)

    async def open(self) -> None:
        """Listen, and join the run.

        Raises:
            UsageError: the address is malformed or taken.
            Unreachable, HandshakeError: the root does not answer, or does not know the secret.
        """
        if self._listen is not None:
            self._listener = await transport_for(self._listen).listen(self._listen, self._accept)
            self.listening = self._listener.address
        if self._join is not None:
            self.root = (await self._connect(self._join)).peer
        if (self._join is not None or self._listen is not None) and not self._node.inline:
            self._heart = self._node.loop.create_task(self._beat(), name=f"{self._node.name}: heartbeat")

    async def close(self) -> None:
        """Say goodbye to all, and let nobody in any more."""
        leftover = [*self._connecting.values(), *([self._heart] if self._heart is not None else [])]
        for task in leftover:
            task.cancel()
        await asyncio.gather(*leftover, return_exceptions=True)
        for link in [*self._links.values(), *self._other_links]:
            link.close()
        if self._listener is not None:
            await self._listener.close()
            self._listener = None

    # Links

    def find(self, peer: str) -> Link | None:
        """Return the link to `peer`, if there is one."""
        return self._links.get(peer)

    async def link_to(self, peer: str) -> Link:
        """Return the link to `peer`, dialling it if there is none.

        Raises:
            Unreachable, HandshakeError: it cannot be found, or is not who it should be.
        """
        link = self._links.get(peer)
        if link is not None:
            return link
        connecting = self._connecting.get(peer)
        if connecting is None:
            connecting = self._connecting[peer] = self._node.loop.create_task(self._dial(peer))

            def connected(task: asyncio.Task[Link]) -> None:
                self._connecting.pop(peer, None)
                if not task.cancelled():
                    task.exception()  # seen, also if whoever wanted the link has given up

            connecting.add_done_callback(connected)
        return await asyncio.shield(connecting)

    def link_opened(self, link: Link) -> None:
        """Take note of a peer that said hello."""
        self._other_links.discard(link)
        older = self._links.get(link.peer)
        if older is not None and older.peer_incarnation == link.peer_incarnation:
            self._other_links.add(link)  # both dialled at once; each goes on sending by the link it has
            return
        if older is not None:
            replaced = HandshakeError(f"another process took the place of {link.peer}")
            self.link_lost(older, replaced)  # at once: what is sent from here on concerns the new process
            older.abort(replaced)
        self._links[link.peer] = link
        if self._join is None and link.peer_listening:
            self._node.directory.register(link.peer, link.peer_listening)
        self._node.log.info("connected", peer=link.peer)

    def link_lost(self, link: Link, error: Exception | None) -> None:
        """Fail all that depended on a peer."""
        node = self._node
        self._other_links.discard(link)
        if self._links.get(link.peer) is not link:
            if isinstance(error, HandshakeError):
                node.log.warning("connection refused", reason=str(error))
            return
        del self._links[link.peer]
        reason = f"node {link.peer} is gone: {error or 'closed by this side'}"
        if not node.stopping:
            expected = link.said_goodbye or error is None or is_guest(link.peer)
            level = node.log.info if expected else node.log.warning
            level("peer gone", peer=link.peer, reason="it said goodbye" if link.said_goodbye else str(error))
        if self._join is None:
            node.directory.unregister(link.peer)
        node.peer_lost(link.peer, Unreachable(reason))
        for watcher, target in sorted(self._watched.pop(link.peer, set())):
            node.tell_terminated(watcher, target, reason)
        if link.peer == self.root:
            node.request_stop(f"the root is gone: {error or 'it said goodbye'}")

    # Watching

    async def watch(self, watcher: str, target: str) -> None:
        """Have `watcher`, an actor of this node, told when `target`, of another, terminates or its node is lost."""
        peer = node_of(target)
        try:
            link = await self.link_to(peer)
            link.post(watcher, target, WatchMsg(watcher=Ref(watcher)))
            self._watched.setdefault(peer, set()).add((watcher, target))
        except OrchestraError as error:
            self._node.tell_terminated(watcher, target, str(error))

    def told_terminated(self, watcher: str, target: str) -> None:
        """Take note that `watcher` has heard that `target` terminated: it is not told again."""
        self._watched.get(node_of(target), set()).discard((watcher, target))

    # Sending

    async def post(self, sender: str, recipient: str, message: Message, number: int = 0, clock: int = 0) -> None:
        """Send `message` to a node that may have to be dialled first; wait while its recipient has no room."""
        link = await self.link_to(node_of(recipient))
        waiting = link.post(sender, recipient, message, number=number, clock=clock)
        if waiting is not None:
            await waiting

    # Inside

    def _accept(self, connection: Connection) -> None:
        if sum(not link.peer for link in self._other_links) >= MAX_UNPROVEN:
            self._node.log.warning("too many connections that have not proved themselves", peer=connection.peer)
            connection.abort(HandshakeError("too many unproven connections"))
            return
        self._other_links.add(Link(self._node, self, connection, dialing=False))

    async def _dial(self, peer: str) -> Link:
        node = self._node
        if self._listener is None and self._join is None:
            raise Unreachable(f"there is no node {peer!r}: {node.name} is alone")
        if self._join is None:
            address = await node.directory.lookup(peer)
        else:
            # As the node, not as the actor whose message had to be sent, which is not what waits for this answer.
            address = await node.ask(f"{node.name}/outside", f"{self.root}/{DIRECTORY}", LookupMsg(node=peer), ())
        if peer in self._links:  # it dialled us meanwhile
            return self._links[peer]
        link = await self._connect(address)
        if link.peer != peer:
            error = HandshakeError(f"expected {peer} at {address}, found {link.peer}")
            link.abort(error)
            raise error
        return self._links[peer]

    async def _connect(self, address: str) -> Link:
        link = Link(self._node, self, await transport_for(address).dial(address), dialing=True)
        try:
            await link.opened
        except asyncio.CancelledError:
            link.abort(Unreachable("given up before it was open"))
            raise
        if link.lost:
            raise Unreachable(f"{link.peer} at {address} was lost as soon as it was found")
        return link

    async def _beat(self) -> None:
        """Ping the peers, and take a silent one for dead."""
        while True:
            due = self._node.loop.time() + HEARTBEAT_S
            await asyncio.sleep(HEARTBEAT_S)
            self._lags.append(max(0.0, self._node.loop.time() - due))
            for link in [*self._links.values(), *self._other_links]:
                if not link.peer:
                    continue  # it has to prove itself first, and in time
                link.silent_beats += 1
                if link.silent_beats > SILENT_BEATS:
                    link.abort(Unreachable(f"not heard for {SILENT_BEATS * HEARTBEAT_S:g} s"))
                else:
                    link.ping()
