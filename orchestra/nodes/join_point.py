"""A join point: a node at which others join the run, and which answers their look-ups from its directory.

The root is one, and so is the agent of a host. A join point announces the nodes that have joined it to the join point
that it has joined itself, all by one connection. It subscribes there to the nodes that are looked up here and are not
below it. Announcements and changes are system messages between the directory actors of two nodes: their order is kept,
and those of one turn of the event loop travel together.
"""

import asyncio
from collections import defaultdict
from collections.abc import Coroutine, Iterable
from typing import Annotated, Any, Protocol

from pydantic import Field

from orchestra.actors.message import Message, Request
from orchestra.actors.system_messages import SystemMsg
from orchestra.errors import AskFailed, OrchestraError, Unreachable
from orchestra.nodes.directory import Directory, NodeEntry
from orchestra.wire.addresses import beyond_host, candidates_of
from orchestra.wire.link import Link

DIRECTORY = "directory"
"""The name of the actor that answers where nodes listen. It has no other task that could delay its answers."""


class LookupMsg(SystemMsg, Request[NodeEntry]):
    """Return the entry of a node, once it has registered."""

    node: str


class NodeEnded(Message):
    """A node that is no longer known at a join point, and may come back."""

    node: str
    incarnation: bytes


class AnnounceMsg(SystemMsg):
    """Changes of the nodes below a join point, sent to the join point above it."""

    join_point: str
    ended: tuple[NodeEnded, ...]
    joined: tuple[NodeEntry, ...]


class SubscribeMsg(SystemMsg):
    """A join point subscribes to the entry of a node at the join point above it."""

    join_point: str
    node: str


class NodeGone(Message):
    """A node that will not come back, and why. It ends all subscriptions to the node."""

    node: str
    reason: str


class EntriesMsg(SystemMsg):
    """Changes of the nodes to which a join point has subscribed."""

    ended: tuple[NodeEnded, ...]
    joined: tuple[NodeEntry, ...]
    gone: tuple[NodeGone, ...]


class DialBackMsg(SystemMsg, Request[str]):
    """Have `node` dial the caller, which cannot dial it. Answered with the reason of a failure, or an empty text."""

    node: Annotated[str, Field(min_length=1)]
    caller: NodeEntry


def usable(address: str, *, same_host: bool) -> str:
    """Return the candidates of `address` that another node can dial.

    `unix://` is of use on the same host only, and so is loopback, unless the other host is a pretended one: then there
    is nothing else. Of loopback addresses a plain one is for the same host, if there is an encrypted one beside it.
    """
    if same_host:
        return address
    there = [each for each in candidates_of(address) if not each.startswith("unix://")]
    return beyond_host(address) or ",".join([each for each in there if each.startswith("tls://")] or there)


def no_route(one: NodeEntry, other: NodeEntry, there: str, back: str) -> Unreachable:
    """Return the error of two nodes that cannot connect, with the reason of each direction."""
    return Unreachable(
        f"{one.node} (host {one.host}) and {other.node} (host {other.host}) cannot connect: "
        f"{one.node} → {other.node}: {there}; {other.node} → {one.node}: {back or 'lost at once'}"
    )


class JoinPointPeers(Protocol):
    """The peers of a node, as its join point uses them."""

    root: str
    """The name of the run's root."""
    upstream: str
    """The join point that this node has joined; empty at the root, or before it has joined."""
    host: str
    """The join point of this node, or the node itself if it is one."""

    def find(self, peer: str) -> Link | None:
        """Return the link to `peer`, if there is one."""

    def ask(self, recipient: str, request: Request[Any]) -> Coroutine[Any, Any, Any]:
        """Send `request` on behalf of the node and return its answer."""

    async def dial_back(self, caller: NodeEntry) -> None:
        """Begin a session with a node that cannot dial this one."""

    def entry_changed(self, entry: NodeEntry | None, before: NodeEntry) -> None:
        """End the link to an earlier process of a node."""


class JoinPoint:
    """The directory of a node, kept equal with those of the join points above and below it.

    Args:
        name: of the node.
        peers: its peers.
    """

    def __init__(self, name: str, peers: JoinPointPeers) -> None:
        self.directory = Directory()
        self.directory.on_change = self._changed
        self._name = name
        self._peers = peers
        self._readers: defaultdict[str, dict[str, None]] = defaultdict(dict)
        """The join points below that have subscribed to each node."""
        self._subscribed: set[str] = set()
        """The nodes to which this one has subscribed above."""
        self._pending: dict[str, dict[str, NodeEntry | NodeEnded | NodeGone]] = {}
        """The changes of this turn of the loop, by recipient and node."""

    # Called by the peers

    def joined(self, link: Link) -> None:
        """Register a node that has joined here."""
        host = link.peer_host or self._name
        entry = NodeEntry(node=link.peer, address=link.peer_listening, incarnation=link.peer_incarnation, host=host)
        self.directory.register(entry, via=link.peer)

    def reached(self, upstream: Link) -> None:
        """Register the join point above at the address by which this node has reached it. The nodes below use it.

        That may be a tunnel, of which the root does not know.
        """
        if self._peers.host != self._name:
            return  # no node joins here
        peer, incarnation = upstream.peer, upstream.peer_incarnation
        entry = NodeEntry(node=peer, address=upstream.address, incarnation=incarnation, host=self._name)
        self.directory.register(entry, via=peer)

    def left(self, peer: str) -> None:
        """Remove a node that had joined here, and all that it announced."""
        for readers in self._readers.values():
            readers.pop(peer, None)
        self.directory.unregister_all(peer)

    async def locate(self, node: str) -> NodeEntry:
        """Return the entry of `node`: from this directory, or from that of the join point where this node has joined.

        Raises:
            Unreachable: the run has no such node, or the join point is gone.
        """
        upstream = self._peers.upstream
        if self._peers.host == self._name:
            return await self.lookup(node)
        if self._peers.find(upstream) is None:
            what = "the root" if upstream == self._peers.root else upstream
            raise Unreachable(f"{node} cannot be found: {what} is gone")  # and will not come back
        try:
            entry: NodeEntry = await self._peers.ask(f"{upstream}/{DIRECTORY}", LookupMsg(node=node))
        except AskFailed as error:
            raise Unreachable(str(error)) from error
        return entry

    async def request_dial_back(self, entry: NodeEntry, here: NodeEntry) -> str:
        """Have a node of another host, which this one cannot dial, dial this node; return why that failed."""
        towards = self._peers.upstream or self.directory.via(entry.node)
        answer: str = await self._peers.ask(f"{towards}/{DIRECTORY}", DialBackMsg(node=entry.node, caller=here))
        return answer

    # Called by the actor

    def lookup(self, node: str) -> asyncio.Future[NodeEntry]:
        """Return a future of the entry of `node`; subscribe to it above if it is not known here."""
        found = self.directory.lookup(node)
        if not found.done():
            self._subscribe(node)
        return found

    def announced(self, msg: AnnounceMsg) -> None:
        """Take the changes of the nodes below a join point."""
        if self._peers.find(msg.join_point) is None:
            return  # it has left meanwhile, and so have its nodes
        self._take(msg.ended, msg.joined, via=msg.join_point)

    def subscribe(self, msg: SubscribeMsg) -> None:
        """Send a join point the entry of a node, and its changes from now on."""
        self._readers[msg.node][msg.join_point] = None
        if (entry := self.directory.entries.get(msg.node)) is not None:
            self._queue(msg.join_point, entry.node, entry)
        elif reason := self.directory.refusal(msg.node):
            self._drop_readers(msg.node, reason)
        else:
            self._subscribe(msg.node)

    def entries(self, msg: EntriesMsg) -> None:
        """Take the changes of nodes to which this join point has subscribed."""
        upstream = self._peers.upstream
        for each in msg.gone:
            self._subscribed.discard(each.node)
            self.directory.gone(each.node, each.reason)
        below = {node for node, entry in self.directory.entries.items() if self.directory.via(node) != upstream}
        self._take(msg.ended, (entry for entry in msg.joined if entry.node not in below), via=upstream)

    async def dial_back(self, msg: DialBackMsg) -> str:
        """Pass the request on towards its node, which dials the caller; return why that failed."""
        upstream = self._peers.upstream
        try:
            if msg.node == self._name:
                await self._peers.dial_back(msg.caller)
                return ""
            entry = self.directory.entries.get(msg.node)
            towards = upstream if entry is None else self.directory.via(msg.node)
            if not towards:
                raise Unreachable(f"{msg.node} is not there")
            answer: str = await self._peers.ask(f"{towards}/{DIRECTORY}", msg)
            return answer
        except OrchestraError as error:
            return str(error)

    # Inside

    def _take(self, ended: Iterable[NodeEnded], joined: Iterable[NodeEntry], *, via: str) -> None:
        for each in ended:
            self.directory.unregister(each.node, via, each.incarnation)
        for entry in joined:
            self.directory.register(entry, via)

    def _subscribe(self, node: str) -> None:
        if self._peers.upstream and node not in self._subscribed:
            self._subscribed.add(node)
            self._flush()  # the join point above learns first that the node has ended here
            self._send(self._peers.upstream, SubscribeMsg(join_point=self._name, node=node))

    def _drop_readers(self, node: str, reason: str) -> None:
        for reader in self._readers.pop(node, {}):
            self._queue(reader, node, NodeGone(node=node, reason=reason))

    def _changed(self, node: str, before: NodeEntry | None, via: str, gone: str) -> None:
        entry = self.directory.entries.get(node)
        if before is not None:
            self._peers.entry_changed(entry, before)
        if gone:
            self._drop_readers(node, gone)
            return
        known = entry or before
        assert known is not None
        change = entry or NodeEnded(node=node, incarnation=known.incarnation)
        for reader in self._readers.get(node, ()):
            self._queue(reader, node, change)
        upstream = self._peers.upstream
        if upstream and via != upstream:
            self._queue(upstream, node, change)
            if entry is None:
                self._subscribed.discard(node)  # what is above may have been hidden by the node below
                if node in self.directory.awaited or self._readers.get(node):
                    self._subscribe(node)

    def _queue(self, recipient: str, node: str, change: NodeEntry | NodeEnded | NodeGone) -> None:
        if not self._pending:
            asyncio.get_running_loop().call_soon(self._flush)
        self._pending.setdefault(recipient, {})[node] = change

    def _flush(self) -> None:
        pending, self._pending = self._pending, {}
        for recipient, changes in pending.items():
            ended = tuple(each for each in changes.values() if isinstance(each, NodeEnded))
            joined = tuple(each for each in changes.values() if isinstance(each, NodeEntry))
            gone = tuple(each for each in changes.values() if isinstance(each, NodeGone))
            if recipient == self._peers.upstream:
                self._send(recipient, AnnounceMsg(join_point=self._name, ended=ended, joined=joined))
            else:
                self._send(recipient, EntriesMsg(ended=ended, joined=joined, gone=gone))

    def _send(self, peer: str, message: SystemMsg) -> None:
        link = self._peers.find(peer)
        if link is not None:  # else it has left, and asks again when it joins again
            link.post(f"{self._name}/{DIRECTORY}", f"{peer}/{DIRECTORY}", message)
