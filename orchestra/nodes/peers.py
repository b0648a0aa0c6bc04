"""The peers of a node: connections are accepted and dialled, and each peer is reached by one link."""

import asyncio
import itertools
from collections.abc import Coroutine
from typing import Any, Protocol

from structlog.typing import FilteringBoundLogger

from orchestra.actors.addresses import is_observer, node_of
from orchestra.actors.message import Message, Request
from orchestra.actors.statistics import LinkStatistics
from orchestra.actors.system_messages import LookupMsg
from orchestra.errors import HandshakeError, NobodyListens, OrchestraError, Unreachable
from orchestra.nodes.directory import Directory
from orchestra.nodes.failure_detection import FailureDetection, backoff, cancel_all, dial
from orchestra.nodes.rejections import Refusals
from orchestra.wire.admission import Admission
from orchestra.wire.handshake import Dial, Handshake, Hello
from orchestra.wire.link import Link
from orchestra.wire.receiver import Receiver
from orchestra.wire.settings import LinkSettings
from orchestra.wire.transports.base import Connection, Listener
from orchestra.wire.transports.registry import transport_for

DIRECTORY = "directory"
"""The name of the actor that answers where nodes listen. It has no other task that could delay its answers."""
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

    directory: Directory
    """Filled by the root; empty elsewhere."""
    log: FilteringBoundLogger

    def ask(self, recipient: str, request: Request[str]) -> Coroutine[Any, Any, str]:
        """Send `request` on behalf of the node and return its answer. No actor waits for it."""

    def peer_lost(self, link: Link, error: Exception | None) -> None:
        """Fail what depended on a peer that is no longer reachable; `error` is None after a goodbye of this side."""


class Peers:
    """The links of a node to its peers. Implements `LinkOwner`.

    Args:
        receiver: takes the messages that arrive.
        listen: the address where connections are accepted; None to accept none.
        join: the address of the root; None for the root itself.
    """

    def __init__(
        self, settings: LinkSettings, host: PeerHost, receiver: Receiver, listen: str | None, join: str | None
    ) -> None:
        self.listening = ""
        """The address where other nodes dial this one, once it is open."""
        self.root = settings.name if join is None else ""
        """The name of the run's root, once it is known."""
        self.routes: dict[str, Link] = {}
        """The links of recipients on other nodes, by address, as far as they were looked up."""
        self._settings = settings
        self._host = host
        self._log = host.log
        self._receiver = receiver
        self._listen = listen
        self._join = join
        self._links: dict[str, Link] = {}
        """The link to each peer."""
        self._sessions: dict[bytes, Link] = {}
        """The links of all sessions that have not ended, by session."""
        self._ended: dict[str, bytes] = {}
        """The last ended session of each peer, the newest last."""
        self._dials: dict[str, Dial] = {}
        """The attempts to begin a session, by peer."""
        self._handshakes: dict[Handshake, None] = {}
        """The handshakes of accepted connections."""
        self._admission: Admission[Handshake] = Admission()
        self._refusals = Refusals(host.log)
        self._disconnecting: set[asyncio.Future[None]] = set()
        """Resolved when the last connection of an ended link is gone."""
        self._connecting: dict[str, asyncio.Task[Link]] = {}
        self._listener: Listener | None = None
        self.failures = FailureDetection(settings, self._sessions, self._shake_hands, self._sum_up)

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
        if self._listen is not None:
            self._listener = await transport_for(self._listen, self._settings.tls).listen(self._listen, self._accept)
            self.listening = self._listener.address
        if self._join is not None:
            self.root = (await self._connect(self._join)).peer
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
            await asyncio.wait(unfinished, timeout=GOODBYE_S)
        for link in list(self._sessions.values()):
            link.end(None)
        await self.failures.stop()
        for handshake in list(self._handshakes):
            handshake.abort(Unreachable(f"{self._settings.name} stops"))
        if self._listener is not None:
            await self._listener.close()
            self._listener = None
        if self._disconnecting:  # else the loop may be closed in the middle of a TLS shutdown
            await asyncio.wait(self._disconnecting, timeout=LEAVE_S)
        self._sum_up(final=True)

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
        if self._join is None and link.peer_listening:
            self._host.directory.register(link.peer, link.peer_listening)
        self._log.info("connected", peer=link.peer)

    def broken(self, link: Link, error: Exception) -> None:
        """Repair a link whose connection is lost."""
        self._log.info("connection broken", peer=link.peer, reason=str(error))
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
        if self._join is None:
            self._host.directory.unregister(link.peer)
        self._host.peer_lost(link, error)

    # Inside: connections by other nodes

    def _accept(self, connection: Connection) -> None:
        handshake = Handshake(
            self._settings, connection, admit=self._admit, over=self._handshake_over, progress=self._handshake_proceeds
        )
        if handshake.done.done():
            return  # the peer has hung up already
        self._handshakes[handshake] = None
        dropped = self._admission.add(handshake, connection.source)
        if dropped is not None:
            dropped.abort(HandshakeError(f"{dropped.peer} was silent for longest of too many connections"))

    def _handshake_proceeds(self, handshake: Handshake) -> None:
        if handshake.proven:
            self._admission.remove(handshake)
        else:
            self._admission.note_progress(handshake)

    def _handshake_over(self, handshake: Handshake, error: Exception | None) -> None:
        self._handshakes.pop(handshake, None)
        self._admission.remove(handshake)
        if isinstance(error, HandshakeError):
            self._refusals.add(self._settings.clock.monotonic(), "connection refused", str(error))

    def _sum_up(self, *, final: bool = False) -> None:
        self._refusals.sum_up(self._settings.clock.monotonic(), final=final)

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

    def _new_link(self, session_id: bytes, address: str = "", expected_peer: str = "") -> Link:
        return Link(self._settings, self, self._receiver, session_id, address, expected_peer)

    # Inside: connections to other nodes

    async def _dial(self, peer: str) -> Link:
        name = self._settings.name
        if self._listener is None and self._join is None:
            raise Unreachable(f"there is no node {peer!r}: {name} is alone")
        if self._join is None:
            address = await self._host.directory.lookup(peer)
        elif self.root not in self._links:
            raise Unreachable(f"{peer} cannot be found: the root is gone")  # and will not come back
        else:
            address = await self._host.ask(f"{self.root}/{DIRECTORY}", LookupMsg(node=peer))
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

    async def _connect(self, address: str, peer: str = "") -> Link:
        """Begin a session with the node at `address`; or return the link that `peer` has opened meanwhile."""
        link = self._new_link(self._settings.entropy(16), address, peer)
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
        """Open a connection for a link that this node dials."""
        link.attempt += 1
        connection = await dial(self._settings, link.address)
        if not link.peer and link.expected_peer in self._links:
            connection.abort()
            raise Unreachable(f"{link.expected_peer} dialled, too")
        handshake = Handshake(self._settings, connection, link=link, over=self._handshake_over)
        if (dialled := self._dials.get(link.expected_peer)) is not None:
            dialled.handshakes.append(handshake)
        try:
            await handshake.done
        except asyncio.CancelledError:
            if handshake.done.cancelled():
                handshake.abort(Unreachable("given up before it was open"))
            raise
