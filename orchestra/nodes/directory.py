"""The directory of a run: where its nodes listen, and at which host they run. No I/O.

The root has an entry for every node. A join point, such as the agent of a host, has the entries of the nodes that
joined it or a join point below it, and copies of those that its nodes have looked up.
"""

import asyncio
from collections.abc import Callable, Iterable

from orchestra.actors.message import Message
from orchestra.errors import Unreachable

ENDED = 4096
"""Nodes whose last ended incarnation is remembered: names come from peers."""


class NodeEntry(Message):
    """The entry of a node, and the reply to a look-up."""

    node: str
    address: str
    """The address where it accepts connections; empty if it accepts none. `unix://` addresses are those of its host."""
    incarnation: bytes
    """Tells its process from an earlier one of the same name."""
    host: str
    """The join point at which the node has joined, or the node itself if it is one."""


class Directory:
    """Entries of nodes. A look-up of a node that is still expected waits for it."""

    def __init__(self) -> None:
        self.entries: dict[str, NodeEntry] = {}
        """The entry of each node that is known."""
        self.on_change: Callable[[str, NodeEntry | None, str, str], None] = lambda node, before, via, gone: None
        """Called after each change: with the node, its entry before, the peer that announced the change, and why the
        node will not come back, if it will not."""
        self._via: dict[str, str] = {}
        """The peer that announced each entry."""
        self._expected: set[str] | None = None
        self._waiting: dict[str, list[asyncio.Future[NodeEntry]]] = {}
        self._ended: dict[str, bytes] = {}

    def expect(self, names: Iterable[str]) -> None:
        """Set the nodes of the run; the look-up of any other fails at once."""
        self._expected = set(names)

    def add(self, node: str) -> None:
        """Expect one more node of the run."""
        if self._expected is not None:
            self._expected.add(node)

    def via(self, node: str) -> str:
        """Return the peer that announced the entry of `node`: the node itself if it joined here."""
        return self._via[node]

    def register(self, entry: NodeEntry, via: str) -> None:
        """Set the entry of a node, which the peer `via` announced, and answer the look-ups that wait for it."""
        replaced = self.entries.get(entry.node)
        self.entries[entry.node], self._via[entry.node] = entry, via
        if replaced is not None and replaced.incarnation != entry.incarnation:
            self._remember_ended(replaced)
        for future in self._waiting.pop(entry.node, []):
            if not future.done():
                future.set_result(entry)
        self.on_change(entry.node, replaced, via, "")

    def unregister(self, node: str, via: str, incarnation: bytes | None = None) -> None:
        """Remove the entry of `node`, which may come back, if it is the one that the peer `via` announced.

        Args:
            node: its name.
            via: the peer.
            incarnation: the incarnation of the entry, or None for any.
        """
        entry = self.entries.get(node)
        if entry is None or self._via[node] != via or incarnation not in (None, entry.incarnation):
            return
        del self.entries[node], self._via[node]
        self._remember_ended(entry)
        self.on_change(node, entry, via, "")

    def unregister_all(self, via: str) -> None:
        """Remove all entries that the peer `via` announced."""
        for node in [node for node, announced_by in self._via.items() if announced_by == via]:
            self.unregister(node, via)

    def has_ended(self, node: str, incarnation: bytes) -> bool:
        """Return whether the last incarnation of `node` that ended is this one."""
        return self._ended.get(node) == incarnation

    def give_up(self, node: str, reason: str) -> None:
        """Remove `node` for good, and fail the look-ups that wait for it."""
        self.gone(node, f"node {node!r} is gone: {reason}")

    def gone(self, node: str, text: str) -> None:
        """Remove `node` for good; the look-ups that wait for it fail with `text`."""
        entry = self.entries.pop(node, None)
        self._via.pop(node, None)
        if self._expected is not None:
            self._expected.discard(node)
        for future in self._waiting.pop(node, []):
            if not future.done():
                future.set_exception(Unreachable(text))
        self.on_change(node, entry, "", text)

    def close(self) -> None:
        """Expect no further node, and fail all look-ups that wait."""
        for node in {*self._waiting, *(self._expected or ())} - set(self.entries):
            self.give_up(node, "the run is over")
        self._expected = set(self.entries)

    def refusal(self, node: str) -> str:
        """Return why a look-up of `node` fails at once; empty if it does not."""
        if node in self.entries or self._expected is None or node in self._expected:
            return ""
        known = ", ".join(sorted(self._expected)) or "none"
        return f"there is no node {node!r}; the nodes of this run are {known}"

    def lookup(self, node: str) -> asyncio.Future[NodeEntry]:
        """Return a future of the entry of `node`. It fails with `Unreachable` if the run has no such node."""
        future: asyncio.Future[NodeEntry] = asyncio.get_running_loop().create_future()
        if node in self.entries:
            future.set_result(self.entries[node])
        elif text := self.refusal(node):
            future.set_exception(Unreachable(text))
        else:
            self._waiting.setdefault(node, []).append(future)
        return future

    @property
    def awaited(self) -> tuple[str, ...]:
        """The nodes that look-ups wait for."""
        return tuple(self._waiting)

    def _remember_ended(self, entry: NodeEntry) -> None:
        self._ended.pop(entry.node, None)
        if len(self._ended) >= ENDED:
            del self._ended[next(iter(self._ended))]
        self._ended[entry.node] = entry.incarnation
