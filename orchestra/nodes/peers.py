"""The other nodes that a node talks to: whom it dials, whom it lets in, who is still there, and who is gone."""

import asyncio
import itertools
from collections import deque
from typing import TYPE_CHECKING, Any

from orchestra.actors.envelope import is_guest, node_of
from orchestra.actors.message import Message
from orchestra.actors.system_messages import LinkStatistics, LookupMsg
from orchestra.errors import HandshakeError, NobodyListens, OrchestraError, Unreachable
from orchestra.nodes.refusals import Refusals
from orchestra.nodes.watches import Watches
from orchestra.wire.dial import Dial
from orchestra.wire.handshake import Handshake, Hello
from orchestra.wire.link import Link
from orchestra.wire.sender import Outbound
from orchestra.wire.transports.base import Connection, Listener
from orchestra.wire.transports.registry import transport_for

if TYPE_CHECKING:
    from orchestra.nodes.node import Node

DIRECTORY = "directory"
"""The name of the actor that says where nodes listen. It does nothing else, so that nothing else decides its order."""
HEARTBEAT_S = 2.0
SILENT_BEATS = 5
"""A connection by which nothing was heard for so many heartbeats is given up, and made anew. Counted in beats, not in
seconds: a node that was itself busy for a minute has heard nobody meanwhile, and that is no fault of theirs."""
ABSENT_BEATS = 5
"""A peer to which there has been no connection for so many heartbeats is dead."""
REFUSALS = 4
"""A peer at whose address nobody listens, so many times in a row, is dead: that takes about a third of a second."""
REMEMBERED_BEATS = 5
BACKOFF_S = 0.02
"""The pause before a broken connection is made anew; doubled for every try that fails, and jittered."""
BACKOFF_MAX_S = 1.0
DIAL_S = 5.0
"""How long one try may take until somebody picks up."""
DIALS = 8
"""Tries to begin a session with somebody who picks up and then hangs up, as one does whom too many dial at once."""
GOODBYE_S = 2.0
"""How long a node that stops waits until its peers have all that it sent them."""
LEAVE_S = 1.0
"""How long it then waits until its connections are gone, too."""
WAYS = 4096
"""Addresses for which it is remembered by which link they are reached."""
ENDED = 4096
"""Peers of which the last session that has ended is remembered: names come from peers. Live sessions do not depend on
it. A peer whose session is forgotten, and that takes it for alive itself, is dialled again until it has heard so."""
MAX_UNPROVEN = 64
"""Connections that have not proved themselves yet; one more is turned away."""


class Peers:
    """The other processes that a node talks to, and what depends on them.

    A peer is alive as long as its session is. Who dialled it dials again when a connection breaks; the other side waits
    for that, and looks meanwhile whether anybody listens where the peer did.

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
        """The link by which each peer is sent to."""
        self.routes: dict[str, Outbound] = {}
        """By what the actors of other nodes are told something, by their addresses, as far as it was looked up."""
        self._sessions: dict[bytes, Link] = {}
        """The same links, by the names of their sessions."""
        self._ended: dict[str, bytes] = {}
        """The last session with each peer that has ended, the newest last."""
        self._dials: dict[str, Dial] = {}
        """The sessions that this node tries to begin, by the name of the peer."""
        self._handshakes: dict[Handshake, None] = {}
        self._refusals = Refusals(node.log)
        self._leaving: set[asyncio.Future[None]] = set()
        """Of the links that have ended, those whose last connection is not gone yet."""
        self._connecting: dict[str, asyncio.Task[Link]] = {}
        self._repairs: dict[Link, asyncio.Task[None]] = {}
        self._listener: Listener | None = None
        self.watches = Watches(node, self)
        self._heart: asyncio.Task[None] | None = None
        self._lags: deque[float] = deque(maxlen=REMEMBERED_BEATS)

    @property
    def names(self) -> tuple[str, ...]:
        """The nodes of the run that this one has a session with, sorted."""
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
        if (self._join is not None or self._listen is not None) and not self._node.deterministic:
            self._heart = self._node.loop.create_task(self._beat(), name=f"{self._node.name}: heartbeat")

    async def close(self) -> None:
        """Say goodbye to all, wait a little until they have all that they were sent, and let nobody in any more."""
        await self._cancel(*self._connecting.values())
        links = list(self._sessions.values())
        for link in links:
            link.close()
        saying = [link.finished for link in links if not link.ended]
        if saying:
            await asyncio.wait(saying, timeout=GOODBYE_S)
        for link in list(self._sessions.values()):
            link.end(None)
        await self._cancel(*self._repairs.values(), *([self._heart] if self._heart is not None else []))
        for handshake in list(self._handshakes):
            handshake.abort(Unreachable(f"{self._node.name} stops"))
        if self._listener is not None:
            await self._listener.close()
            self._listener = None
        if self._leaving:  # or the loop may be closed in the midst of a shutdown of TLS
            await asyncio.wait(self._leaving, timeout=LEAVE_S)
        self._refusals.sum_up(self._node.clock.monotonic(), finally_=True)

    # Links

    def find(self, peer: str) -> Link | None:
        """Return the link to `peer`, if there is one."""
        return self._links.get(peer)

    def route_to(self, recipient: str, peer: str) -> Outbound | None:
        """Return by what an actor of `peer` is told something, if there is a link; and remember it in `routes`."""
        link = self._links.get(peer)
        if link is None:
            return None
        if len(self.routes) >= WAYS:
            self.routes.clear()
        self.routes[recipient] = link.outbound
        return link.outbound

    def is_asked(self, peer: str, correlation: int) -> bool:
        """Whether a request of `peer` is not answered yet."""
        link = self._links.get(peer)
        return link is not None and link.is_asked(correlation)

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
        """Take note of a session that has begun."""
        self._sessions[link.session] = link
        older = self._links.get(link.peer)
        if older is not None and older.peer_incarnation != link.peer_incarnation:
            # At once: what is sent from here on concerns the new process.
            older.end(HandshakeError(f"another process took the place of {link.peer}"))
        elif older is not None:
            older.end(Unreachable(f"{link.peer} began anew"))  # it has given up the session that there was
        self._links[link.peer] = link
        self.routes.clear()
        if self._join is None and link.peer_listening:
            self._node.directory.register(link.peer, link.peer_listening)
        self._node.log.info("connected", peer=link.peer)

    def last_ended(self, peer: str) -> bytes:
        """Return the name of the last session with `peer` that has ended; empty if there was none."""
        return self._ended.get(peer, b"")

    def link_broken(self, link: Link, error: Exception) -> None:
        """Mend a link whose connection is lost, if that is up to this side."""
        self._node.log.info("connection broken", peer=link.peer, reason=str(error))
        repair = self._redial(link) if link.address else self._look_for(link)
        task = self._repairs[link] = self._node.loop.create_task(repair, name=f"{self._node.name}: find {link.peer}")

        def over(done: asyncio.Task[None]) -> None:
            if self._repairs.get(link) is done:
                del self._repairs[link]
            if not done.cancelled() and (failure := done.exception()) is not None:
                link.end(failure if isinstance(failure, Exception) else RuntimeError(repr(failure)))

        task.add_done_callback(over)

    def link_resumed(self, link: Link) -> None:
        """Take note that a link has a connection again."""
        if not link.address:  # whoever dialled it is just returning from that
            self._end_repair(link)
        self._node.log.info("connected again", peer=link.peer)

    def link_lost(self, link: Link, error: Exception | None) -> None:
        """Fail all that depended on a peer."""
        node = self._node
        self._end_repair(link)
        if not link.left.done():
            self._leaving.add(link.left)
            link.left.add_done_callback(self._leaving.discard)
        if self._sessions.get(link.session) is link:
            del self._sessions[link.session]
            if not is_guest(link.peer):
                self._ended.pop(link.peer, None)
                if len(self._ended) >= ENDED:
                    del self._ended[next(iter(self._ended))]
                self._ended[link.peer] = link.session
        if self._links.get(link.peer) is not link:
            return
        del self._links[link.peer]
        self.routes.clear()
        reason = f"node {link.peer} is gone: {error or 'closed by this side'}"
        if not node.stopping:
            expected = link.said_goodbye or error is None or is_guest(link.peer)
            level = node.log.info if expected else node.log.warning
            level("peer gone", peer=link.peer, reason=str(error))
        if self._join is None:
            node.directory.unregister(link.peer)
        node.asks.peer_lost(link.peer, Unreachable(reason))
        self.watches.peer_lost(link.peer, reason)
        if link.peer == self.root:
            node.request_stop(f"the root is gone: {error}")

    # Sending

    async def post(self, sender: str, recipient: str, message: Message, number: int = 0, clock: int = 0) -> None:
        """Send `message` to a node that may have to be dialled first; wait while its recipient has no room."""
        link = await self.link_to(node_of(recipient))
        waiting = link.outbound.post(sender, recipient, message, number=number, clock=clock)
        if waiting is not None:
            await waiting

    # Inside: who dials this node

    def _accept(self, connection: Connection) -> None:
        if len(self._handshakes) >= MAX_UNPROVEN:
            event = "too many connections that have not proved themselves"
            self._refusals.tell(self._node.clock.monotonic(), event, f"{connection.peer} is one too many")
            connection.abort(HandshakeError("too many unproven connections"))
            return
        handshake = Handshake(self._node, connection, admit=self._admit, over=self._handshake_over)
        self._handshakes[handshake] = None

    def _handshake_over(self, handshake: Handshake, error: Exception | None) -> None:
        self._handshakes.pop(handshake, None)
        if isinstance(error, HandshakeError):
            self._refusals.tell(self._node.clock.monotonic(), "connection refused", str(error))

    def _admit(self, hello: Hello) -> "Link | asyncio.Future[None]":
        """Return the link that a dialer's hello is for, ready for a new connection; or what that depends on.

        Two nodes that dial each other at once settle on one session before anything is said in it: the dial of the one
        whose name comes first counts, and the other's is held until that has worked, or has not. (Erlang's nodes do it
        like that.)
        """
        link = self._sessions.get(hello.session)
        if link is None:
            if hello.resumes:
                raise HandshakeError(f"{self._node.name} has ended the session with {hello.node}")
            mine = self._dials.get(hello.node)
            if mine is not None and mine.greeted and self._node.name < hello.node:
                return mine.over
            older = self._links.get(hello.node)
            if (
                older is not None
                and older.address
                and older.peer_incarnation == hello.incarnation
                and hello.after != older.session
            ):
                raise Unreachable("it dialled before it knew of our session")
            if mine is not None:
                mine.give_up(Unreachable(f"{hello.node} dialled, too"))
            link = Link(self._node, self, hello.session)
            link.attempt = hello.attempt
            return link
        if (link.peer, link.peer_incarnation) != (hello.node, hello.incarnation) or link.address:
            raise HandshakeError(f"{hello.node} names a session that is another's")
        if hello.attempt <= link.attempt:
            raise Unreachable("a newer connection came first")
        link.attempt = hello.attempt
        return link

    # Inside: whom this node dials

    async def _dial(self, peer: str) -> Link:
        node = self._node
        if self._listener is None and self._join is None:
            raise Unreachable(f"there is no node {peer!r}: {node.name} is alone")
        if self._join is None:
            address = await node.directory.lookup(peer)
        elif self.root not in self._links:
            raise Unreachable(f"{peer} cannot be found: the root is gone")  # and it will not come back
        else:
            # As the node, not as the actor whose message had to be sent, which is not what waits for this answer.
            address = await node.asks.ask(f"{node.name}/outside", f"{self.root}/{DIRECTORY}", LookupMsg(node=peer), ())
        dial = self._dials[peer] = Dial(node.loop.create_future())
        try:
            link = await self._connect(address, peer)
        finally:
            del self._dials[peer]
            dial.over.set_result(None)
        if link.peer != peer:
            error = HandshakeError(f"expected {peer} at {address}, found {link.peer}")
            link.end(error)
            raise error
        return self._links[peer]

    async def _connect(self, address: str, peer: str = "") -> Link:
        """Begin a session with whoever listens at `address`; or return the one that `peer` has begun meanwhile."""
        link = Link(self._node, self, self._node.entropy(16), address, peer)
        for tries in itertools.count(1):
            if peer in self._links:
                return self._links[peer]
            try:
                await self._shake_hands(link)
                break
            except OrchestraError as error:
                if peer in self._links:
                    return self._links[peer]
                if tries == DIALS or not isinstance(error, Unreachable) or isinstance(error, NobodyListens):
                    raise
                await asyncio.sleep(self._backoff(tries))
        if link.ended:
            raise Unreachable(f"{link.peer} at {address} was lost as soon as it was found")
        return link

    async def _shake_hands(self, link: Link) -> None:
        link.attempt += 1
        try:
            async with asyncio.timeout(DIAL_S):
                connection = await transport_for(link.address).dial(link.address)
        except TimeoutError:
            raise Unreachable(f"nobody answers at {link.address} within {DIAL_S:g} s") from None
        if not link.peer and link.seeks in self._links:
            connection.abort()
            raise Unreachable(f"{link.seeks} dialled, too")
        handshake = Handshake(self._node, connection, link=link, over=self._handshake_over)
        dial = self._dials.get(link.seeks)
        if dial is not None:
            dial.handshakes.append(handshake)
        try:
            await handshake.done
        except asyncio.CancelledError:
            if handshake.done.cancelled():
                handshake.abort(Unreachable("given up before it was open"))
            raise

    async def _redial(self, link: Link) -> None:
        """Make a new connection for a session that this side began; end it if that is in vain."""
        refused = 0
        for tries in itertools.count():
            await asyncio.sleep(self._backoff(tries))
            try:
                await self._shake_hands(link)
                return
            except HandshakeError as error:
                link.end(error)
                return
            except NobodyListens as error:
                refused += 1
                if refused == REFUSALS:
                    link.end(error)
                    return
            except Unreachable:
                refused = 0  # somebody may be there

    async def _look_for(self, link: Link) -> None:
        """While the other side should be dialling: see whether it lives at all."""
        refused = 0
        for tries in itertools.count():
            if not link.peer_listening:
                return  # it can only be waited for
            await asyncio.sleep(self._backoff(tries))
            try:
                async with asyncio.timeout(DIAL_S):
                    (await transport_for(link.peer_listening).dial(link.peer_listening)).abort()
                refused = 0
            except NobodyListens as error:
                refused += 1
                if refused == REFUSALS:
                    link.end(error)
                    return
            except (Unreachable, TimeoutError):
                refused = 0

    def _backoff(self, tries: int) -> float:
        """Return the seconds to wait before a try, after so many that failed: doubled each time, ± 50%."""
        jitter = 0.5 + int.from_bytes(self._node.entropy(4), "little") / 2**32
        return float(min(BACKOFF_S * 2 ** min(tries, 20), BACKOFF_MAX_S) * jitter)

    def _end_repair(self, link: Link) -> None:
        repair = self._repairs.pop(link, None)
        if repair is not None and repair is not asyncio.current_task():
            repair.cancel()

    async def _cancel(self, *tasks: "asyncio.Task[Any]") -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _beat(self) -> None:
        """Ping the peers; give up connections that are silent, and peers that do not come back."""
        while True:
            due = self._node.loop.time() + HEARTBEAT_S
            await asyncio.sleep(HEARTBEAT_S)
            self._lags.append(max(0.0, self._node.loop.time() - due))
            self._refusals.sum_up(self._node.clock.monotonic())
            for link in list(self._sessions.values()):
                link.missed_beats += 1
                if not link.connected:
                    if link.missed_beats > ABSENT_BEATS:
                        link.end(Unreachable(f"it did not come back within {ABSENT_BEATS * HEARTBEAT_S:g} s"))
                elif link.missed_beats > SILENT_BEATS:
                    link.interrupt(Unreachable(f"not heard for {SILENT_BEATS * HEARTBEAT_S:g} s"))
                else:
                    link.ping()
