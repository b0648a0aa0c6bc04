"""The peers of a node: connections are accepted and dialled, and each peer is reached by one link."""

import asyncio
import itertools
import math
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, Protocol

from structlog.typing import FilteringBoundLogger

from orchestra.actors.addresses import is_observer, node_of
from orchestra.actors.message import Message, Request
from orchestra.actors.statistics import LinkStatistics
from orchestra.errors import HandshakeError, NobodyListens, OrchestraError, Unreachable
from orchestra.nodes.acceptor import Acceptor
from orchestra.nodes.dialling import Claim, Dialler, backoff, cancel_all, dial
from orchestra.nodes.directory import NodeEntry
from orchestra.nodes.failure_detection import FailureDetection
from orchestra.nodes.join_point import JoinPoint, no_route, usable
from orchestra.wire.addresses import candidates_of, told_to_others
from orchestra.wire.handshake import Dial, Handshake, Hello
from orchestra.wire.link import Link
from orchestra.wire.receiver import Receiver
from orchestra.wire.settings import LinkSettings
from orchestra.wire.transports.base import Listener
from orchestra.wire.transports.registry import transport_for

DIALS = 8
"""Attempts to begin a session with a peer that accepts connections and drops them, as a flooded one does."""
GOODBYE_S = 2.0
"""Seconds that a stopping node waits for its peers to acknowledge every frame."""
LEAVE_S = 1.0
"""Seconds that it then waits for its connections to close."""
ROUTES = 4096
"""Addresses whose link is remembered."""
ENDED = 4096
"""Peers whose last ended session is remembered: names come from peers. Live sessions do not depend on it. A forgotten
peer that believes in the session is dialled again until it has learnt of the end."""


class PeerHost(Protocol):
    """A node, as its peers' links use it."""

    log: FilteringBoundLogger

    def ask(self, recipient: str, request: Request[Any]) -> Coroutine[Any, Any, Any]:
        """Send `request` on behalf of the node and return its answer. No actor waits for it."""

    def peer_lost(self, link: Link, error: Exception | None) -> None:
        """Fail what depended on a peer that is no longer reachable; `error` is None after a goodbye of this side."""


class Peers:
    """The links of a node to its peers. Implements `LinkOwner`.

    Args:
        receiver: takes the messages that arrive.
        listen: the address where connections are accepted; None to accept none.
        join: the address of the join point where this node joins the run; None for the root.
        advertise: hosts, with or without a port, where others reach this node.
        join_timeout_s: seconds in which it tries to join again; 0 to try once.
        joinable: whether this node is a join point itself, as the root is.
    """

    def __init__(
        self,
        settings: LinkSettings,
        host: PeerHost,
        receiver: Receiver,
        listen: str | None,
        join: str | None,
        advertise: Sequence[str],
        join_timeout_s: float,
        *,
        joinable: bool,
    ) -> None:
        self.listening = ""
        """The address where other nodes dial this one, once it is open."""
        self.root = settings.name if join is None else ""
        """The name of the run's root, once it is known."""
        self.joined_by = ""
        """The candidate by which this node has joined. If it is set before, as that of an earlier node of this process,
        it comes first, and the root is gone if no process listens there."""
        self.upstream = ""
        """The join point that this node has joined; empty at the root, or before it has joined."""
        self.host = settings.name if join is None or joinable else ""
        """The join point of this node, or the node itself if it is one; empty before it has joined."""
        self.join_point = JoinPoint(settings.name, self)
        self._joined: asyncio.Future[None] | None = None
        """Done once this node has joined; nodes that join here wait for it."""
        self.routes: dict[str, Link] = {}
        """The links of recipients on other nodes, by address, as far as they were looked up."""
        self._settings = settings
        self._host = host
        self._log = host.log
        self._receiver = receiver
        self._listen = listen
        self._join = join
        self._advertise = advertise
        self._join_timeout_s = join_timeout_s
        self.patience_s = math.inf  # a bound of both waits of `close`, for a run that has to end by some moment
        self._links: dict[str, Link] = {}
        """The link to each peer."""
        self._sessions: dict[bytes, Link] = {}
        """The links of all sessions that have not ended, by session."""
        self._ended: dict[str, bytes] = {}
        """The last ended session of each peer, the newest last."""
        self._dials: dict[str, Dial] = {}
        """The attempts to begin a session, by peer."""
        self._acceptor = Acceptor(settings, self._admit, host.log)
        self._disconnecting: set[asyncio.Future[None]] = set()
        """Resolved when the last connection of an ended link is gone."""
        self._connecting: dict[str, asyncio.Task[Link]] = {}
        self._listeners: list[Listener] = []
        self._dialler = Dialler(settings, host.log)
        self.failures = FailureDetection(
            settings, self._dialler, self._sessions, self._shake_hands, self._checkable, self._acceptor.sum_up
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The nodes of the run that this one has a session with, sorted."""
        return tuple(sorted(peer for peer in self._links if not is_observer(peer)))

    def statistics(self) -> tuple[LinkStatistics, ...]:
        """Return the statistics of the links to the nodes of the run."""
        return tuple(self._links[name].statistics() for name in self.names)

    async def open(self) -> None:
        """Listen, and join the run.

        Raises:
            UsageError: the address is malformed or taken.
            Unreachable, HandshakeError: the root does not answer, or does not know the secret.
        """
        for address in candidates_of(self._listen or ""):
            transport = transport_for(address, self._settings.tls)
            self._listeners.append(await transport.listen(address, self._acceptor.accept))
        told = (told_to_others(listener.address, self._advertise) for listener in self._listeners)
        self.listening = ",".join(told)
        if (join := self._join) is not None:
            self._joined = asyncio.get_running_loop().create_future()
            link = await self._dialler.join(lambda: self._connect(join, joins=True), self._join_timeout_s)
            self.root, self.upstream, self.host = link.peer_root, link.peer, self.host or link.peer_host
            self.joined_by = link.reached
            self.join_point.reached(link)
            self._joined.set_result(None)
        if (self._join is not None or self._listen is not None) and not self._settings.deterministic:
            self.failures.start()

    async def close(self) -> None:
        """Say goodbye to all peers, give them time to acknowledge every frame, and stop listening."""
        await cancel_all(*self._connecting.values())
        links = list(self._sessions.values())
        for link in links:
            link.close()
        unfinished = [link.finished for link in links if not link.ended]
        if unfinished:
            await asyncio.wait(unfinished, timeout=min(GOODBYE_S, self.patience_s))
        for link in list(self._sessions.values()):
            link.end(None)
        await self.failures.stop()
        self._acceptor.abort(Unreachable(f"{self._settings.name} stops"))
        for listener in self._listeners:
            await listener.close()
        self._listeners.clear()
        if self._disconnecting:  # else the loop may be closed in the middle of a TLS shutdown
            await asyncio.wait(self._disconnecting, timeout=min(LEAVE_S, self.patience_s))
        self._acceptor.sum_up(final=True)

    # Links

    def find(self, peer: str) -> Link | None:
        """Return the link to `peer`, if there is one."""
        return self._links.get(peer)

    def route_to(self, recipient: str) -> Link | None:
        """Return the link to the node of `recipient`, if there is one, and remember it in `routes`.

        Raises:
            Unreachable: the address is one of this node, which has no such actor.
        """
        peer = node_of(recipient)
        link = self._links.get(peer)
        if link is None:
            if peer == self._settings.name:
                raise Unreachable(f"there is no actor at {recipient}; it may have stopped")
            return None
        if len(self.routes) >= ROUTES:
            self.routes.clear()
        self.routes[recipient] = link
        return link

    def is_unanswered(self, peer: str, correlation: int) -> bool:
        """Return whether a request of `peer` still waits for its answer."""
        link = self._links.get(peer)
        return link is not None and link.is_unanswered(correlation)

    async def connect(self, recipient: str) -> Link:
        """Return the link to the node of `recipient`; dial it if there is none.

        Raises:
            Unreachable, HandshakeError: the peer cannot be found, or another node answers.
        """
        peer = node_of(recipient)
        link = self._links.get(peer)
        if link is not None:
            return link
        connecting = self._connecting.get(peer)
        if connecting is None:
            connecting = self._connecting[peer] = asyncio.create_task(self._dial(peer))

            def connected(task: asyncio.Task[Link]) -> None:
                self._connecting.pop(peer, None)
                if not task.cancelled():
                    task.exception()  # retrieved, also if every waiting sender has been cancelled

            connecting.add_done_callback(connected)
        return await asyncio.shield(connecting)

    async def post(self, sender: str, recipient: str, message: Message, number: int = 0, clock: int = 0) -> None:
        """Send `message` to a node that may have to be dialled first; wait until its recipient has credit."""
        link = await self.connect(recipient)
        waiting = link.post(sender, recipient, message, number=number, clock=clock)
        if waiting is not None:
            await waiting

    def post_nowait(self, sender: str, recipient: str, message: Message, number: int = 0, clock: int = 0) -> None:
        """Send `message` without waiting.

        Raises:
            MailboxFull: the recipient has no credit left.
            Unreachable: there is no connection.
        """
        link = self.route_to(recipient)
        if link is None:
            name, peer = self._settings.name, node_of(recipient)
            raise Unreachable(f"{name} has no connection to {peer} yet; `tell` makes one")
        link.sender.post_nowait(sender, recipient, message, number, clock)

    # LinkOwner

    def last_ended(self, peer: str) -> bytes:
        """Return the name of the last session with `peer` that ended; empty if there was none."""
        return self._ended.get(peer, b"")

    def opened(self, link: Link) -> None:
        """Send to the peer by this link from now on."""
        self._sessions[link.session_id] = link
        older = self._links.get(link.peer)
        if older is not None and older.peer_incarnation != link.peer_incarnation:
            # At once: later messages are for the new process.
            older.end(HandshakeError(f"another process took the place of {link.peer}"))
        elif older is not None:
            older.end(Unreachable(f"{link.peer} began a new session"))  # the peer has given up the older session
        self._links[link.peer] = link
        self.routes.clear()
        if link.peer_joined and not is_observer(link.peer):
            self.join_point.joined(link)
        self._log.info("connected", peer=link.peer)

    def broken(self, link: Link, error: Exception) -> None:
        """Repair a link whose connection is lost."""
        self._log.info("connection broken", peer=link.peer, reason=str(error))
        if self.join_point.directory.has_ended(link.peer, link.peer_incarnation):
            link.end(Unreachable(f"{link.peer} has ended, as {link.peer_host} reports"))
        else:
            self.failures.repair(link)

    def resumed(self, link: Link) -> None:
        """End the repair of a link that has a connection again."""
        if not link.address:  # else the repair itself made the connection, and is about to return
            self.failures.end_repair(link)
        self._log.info("connected again", peer=link.peer)

    def lost(self, link: Link, error: Exception | None) -> None:
        """Forget a link that has ended, and fail what depended on its peer."""
        self.failures.end_repair(link)
        if not link.disconnected.done():
            self._disconnecting.add(link.disconnected)
            link.disconnected.add_done_callback(self._disconnecting.discard)
        if self._sessions.get(link.session_id) is link:
            del self._sessions[link.session_id]
            if not is_observer(link.peer):
                self._ended.pop(link.peer, None)
                if len(self._ended) >= ENDED:
                    del self._ended[next(iter(self._ended))]
                self._ended[link.peer] = link.session_id
        if self._links.get(link.peer) is not link:
            return
        del self._links[link.peer]
        self.routes.clear()
        if link.peer_joined:
            self.join_point.left(link.peer)
        self._host.peer_lost(link, error)

    # The peers of the join point

    def ask(self, recipient: str, request: Request[Any]) -> Coroutine[Any, Any, Any]:
        """Send `request` on behalf of the node and return its answer."""
        return self._host.ask(recipient, request)

    def entry_changed(self, entry: NodeEntry | None, before: NodeEntry) -> None:
        """End the link to an earlier process of a node; if there is no later one, only while it has no connection."""
        link = self._links.get(before.node)
        if link is None or link.peer_incarnation != before.incarnation:
            return
        if entry is None and not link.connected:
            link.end(Unreachable(f"{before.node} has ended, as {before.host} reports"))
        elif entry is not None and entry.incarnation != before.incarnation:
            link.end(HandshakeError(f"another process took the place of {before.node}"))

    async def dial_back(self, caller: NodeEntry) -> None:
        """Begin a session with a node that cannot dial this one.

        Raises:
            Unreachable, HandshakeError: this node cannot dial it either.
        """
        if caller.node not in self._links:
            await self._begin(caller)

    # Inside: connections by other nodes

    def _admit(self, hello: Hello) -> Link | asyncio.Future[None]:
        """Return the link that a dialer's hello is for, or a future to await before it can be known.

        Two nodes that dial each other at the same time agree on one session before any message is sent: the dial of the
        node whose name sorts first counts, and the other one is held until the first has succeeded or failed. Erlang's
        nodes do the same.
        """
        name = self._settings.name
        link = self._sessions.get(hello.session)
        if link is None:
            if hello.resumes:
                raise HandshakeError(f"{name} has ended the session with {hello.node}")
            mine = self._dials.get(hello.node)
            if mine is not None and mine.greeted and name < hello.node:
                return mine.over
            older = self._links.get(hello.node)
            if (
                older is not None
                and older.address
                and older.peer_incarnation == hello.incarnation
                and hello.after != older.session_id
            ):
                raise Unreachable("it dialled before it knew of our session")
            if hello.joins and not self.root:
                assert self._joined is not None
                return self._joined
            if hello.joins and self.host != name:
                raise HandshakeError(f"{name} is no join point; join at {self.host}")
            if mine is not None:
                mine.give_up(Unreachable(f"{hello.node} dialled, too"))
            link = self._new_link(hello.session)
            link.attempt = hello.attempt
            return link
        if (link.peer, link.peer_incarnation) != (hello.node, hello.incarnation) or link.address:
            raise HandshakeError(f"{hello.node} names the session of another node")
        if hello.attempt <= link.attempt:
            raise Unreachable("a newer connection came first")
        link.attempt = hello.attempt
        return link

    def _new_link(self, session_id: bytes, address: str = "", peer: str = "", *, joins: bool = False) -> Link:
        return Link(self._settings, self, self._receiver, session_id, address, peer, joins=joins)

    def _checkable(self, link: Link) -> str:
        return self._usable(link.peer_listening, link.peer_host)

    def _usable(self, address: str, host: str) -> str:
        """Return the candidates of an address of a node on `host` that this node can dial."""
        return usable(address, same_host=host in ("", self.host))

    # Inside: connections to other nodes

    async def _dial(self, peer: str) -> Link:
        name = self._settings.name
        if not self._listeners and self._join is None:
            raise Unreachable(f"there is no node {peer!r}: {name} is alone")
        entry = await self.join_point.locate(peer)
        try:
            return await self._begin(entry)
        except OrchestraError as error:
            if entry.host == self.host or peer in (self.root, *self._links):
                raise
            address, incarnation = self.listening, self._settings.incarnation
            here = NodeEntry(node=name, address=address, incarnation=incarnation, host=self.host)
            reason = await self.join_point.request_dial_back(entry, here)
            if peer not in self._links:
                raise no_route(here, entry, str(error), reason) from error
            return self._links[peer]

    async def _begin(self, entry: NodeEntry) -> Link:
        """Begin a session with a node by dialling it."""
        peer, address = entry.node, self._usable(entry.address, entry.host)
        if not address:
            raise Unreachable(f"{peer} accepts no connections{' from other hosts' if entry.address else ''}")
        dialled = self._dials[peer] = Dial(asyncio.get_running_loop().create_future())
        try:
            link = await self._connect(address, peer)
        finally:
            del self._dials[peer]
            dialled.over.set_result(None)
        if link.peer != peer:
            error = HandshakeError(f"expected {peer} at {address}, found {link.peer}")
            link.end(error)
            raise error
        return self._links[peer]

    async def _connect(self, address: str, peer: str = "", *, joins: bool = False) -> Link:
        """Begin a session with the node at `address`; or return the link that `peer` has opened meanwhile."""
        link = self._new_link(self._settings.entropy(16), address, peer, joins=joins)
        link.reached = self.joined_by if joins else ""
        for attempts in itertools.count(1):
            if peer in self._links:
                return self._links[peer]
            try:
                await self._shake_hands(link)
                break
            except OrchestraError as error:
                if peer in self._links:
                    return self._links[peer]
                if attempts == DIALS or not isinstance(error, Unreachable) or isinstance(error, NobodyListens):
                    raise
                await asyncio.sleep(backoff(self._settings, attempts))
        if link.ended:
            raise Unreachable(f"{link.peer} at {address} was lost as soon as it was found")
        return link

    async def _shake_hands(self, link: Link) -> None:
        """Open a connection for a link that this node dials, by the first candidate that proves itself."""
        link.attempt += 1
        link.reached = await self._dialler.first(link.address, link.reached, partial(self._attempt, link))

    async def _attempt(self, link: Link, candidate: str, claim: Claim) -> None:
        """Open a connection for a link that this node dials by a candidate, unless another one is first."""
        connection = await dial(self._settings, candidate)
        if not link.peer and link.expected_peer in self._links:
            connection.abort()
            raise Unreachable(f"{link.expected_peer} dialled, too")
        handshake = Handshake(self._settings, connection, link=link, claim=claim, over=self._acceptor.over)
        if (dialled := self._dials.get(link.expected_peer)) is not None:
            dialled.handshakes.append(handshake)
        try:
            await handshake.done
        except asyncio.CancelledError:
            if handshake.done.cancelled():
                handshake.abort(Unreachable("given up before it was open"))
            raise
