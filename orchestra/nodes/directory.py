"""The directory of a run: the addresses where nodes listen. The root keeps it; other nodes ask the root."""

import asyncio
from collections.abc import Iterable

from orchestra.errors import Unreachable


class Directory:
    """Names of nodes and their addresses. A look-up of a node that is still expected waits for it."""

    def __init__(self) -> None:
        self._addresses: dict[str, str] = {}
        self._expected: set[str] | None = None
        self._waiting: dict[str, list[asyncio.Future[str]]] = {}

    def expect(self, names: Iterable[str]) -> None:
        """Set the nodes of the run; the look-up of any other fails at once."""
        self._expected = set(names)

    def add(self, node: str) -> None:
        """Expect one more node of the run."""
        if self._expected is not None:
            self._expected.add(node)

    def register(self, node: str, address: str) -> None:
        """Set the address of `node`, and answer the look-ups that wait for it."""
        self._addresses[node] = address
        for future in self._waiting.pop(node, []):
            if not future.done():
                future.set_result(address)

    def unregister(self, node: str) -> None:
        """Remove the address of `node`, which may come back."""
        self._addresses.pop(node, None)

    def give_up(self, node: str, reason: str) -> None:
        """Remove `node` for good, and fail the look-ups that wait for it."""
        self.unregister(node)
        if self._expected is not None:
            self._expected.discard(node)
        for future in self._waiting.pop(node, []):
            if not future.done():
                future.set_exception(Unreachable(f"node {node!r} is gone: {reason}"))

    def close(self) -> None:
        """Expect no further node, and fail all look-ups that wait."""
        for node in list(self._waiting):
            self.give_up(node, "the run is over")
        self._expected = set(self._addresses)

    def lookup(self, node: str) -> asyncio.Future[str]:
        """Return a future of the address of `node`. It fails with `Unreachable` if the run has no such node."""
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        if node in self._addresses:
            future.set_result(self._addresses[node])
        elif self._expected is not None and node not in self._expected:
            known = ", ".join(sorted(self._expected)) or "none"
            future.set_exception(Unreachable(f"there is no node {node!r}; the nodes of this run are {known}"))
        else:
            self._waiting.setdefault(node, []).append(future)
        return future
