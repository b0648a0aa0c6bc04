"""Which node listens where. The root keeps it; the others ask it."""

import asyncio
from collections.abc import Iterable

from orchestra.errors import Unreachable


class Directory:
    """Names of nodes and their addresses. Who asks for a node that is still to come waits for it."""

    def __init__(self) -> None:
        self._addresses: dict[str, str] = {}
        self._expected: set[str] | None = None
        self._waiting: dict[str, list[asyncio.Future[str]]] = {}

    def expect(self, names: Iterable[str]) -> None:
        """Say which nodes there will ever be; asking for any other fails at once."""
        self._expected = set(names)

    def register(self, node: str, address: str) -> None:
        """Take note that `node` listens at `address`; whoever waits for it is answered."""
        self._addresses[node] = address
        for future in self._waiting.pop(node, []):
            if not future.done():
                future.set_result(address)

    def unregister(self, node: str) -> None:
        """Forget where `node` listened; it may come back."""
        self._addresses.pop(node, None)

    def give_up(self, node: str, reason: str) -> None:
        """Say that `node` will not come (again); whoever waits for it fails."""
        self.unregister(node)
        if self._expected is not None:
            self._expected.discard(node)
        for future in self._waiting.pop(node, []):
            if not future.done():
                future.set_exception(Unreachable(f"node {node!r} is gone: {reason}"))

    def close(self) -> None:
        """Say that no node will come any more; whoever waits for one fails."""
        for node in list(self._waiting):
            self.give_up(node, "the run is over")
        self._expected = set(self._addresses)

    def lookup(self, node: str) -> asyncio.Future[str]:
        """Return a future of the address of `node`."""
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        if node in self._addresses:
            future.set_result(self._addresses[node])
        elif self._expected is not None and node not in self._expected:
            known = ", ".join(sorted(self._expected)) or "none"
            future.set_exception(Unreachable(f"there is no node {node!r}; the nodes of this run are {known}"))
        else:
            self._waiting.setdefault(node, []).append(future)
        return future
