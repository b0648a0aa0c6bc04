"""Admission: bounds the connections that have not proved themselves. No I/O."""

from ipaddress import IPv6Address, ip_address
from typing import Generic, TypeVar

T = TypeVar("T")

MAX_UNPROVEN = 256
"""Connections of a node, or of a TLS listener, that have not proved themselves."""
MAX_PER_SOURCE = 128
"""Of these, connections from one source."""
HOST_BITS = 64
"""Bits of an IPv6 address that a single host chooses itself."""


class Admission(Generic[T]):
    """The connections that have not proved themselves, by source, each in the order of the last sign of life.

    A new connection is always let in. Beyond the bounds another one is dropped: that of the same source that has been
    silent for longest; or, if all sources together have too many, that of the source with the most. A flood therefore
    neither blocks connections from other sources nor displaces one of them.
    """

    def __init__(self) -> None:
        self._by_source: dict[str, dict[T, None]] = {}
        self._sources: dict[T, str] = {}

    def __len__(self) -> int:
        return len(self._sources)

    def add(self, connection: T, source: str) -> T | None:
        """Add a connection; return the one to drop, which is removed, or None."""
        mine = self._by_source.setdefault(source, {})
        crowded = None
        if len(mine) >= MAX_PER_SOURCE:
            crowded = mine
        elif len(self) >= MAX_UNPROVEN:
            crowded = max(self._by_source.values(), key=len)
        dropped = None if crowded is None else next(iter(crowded))
        self._sources[connection] = source
        mine[connection] = None
        if dropped is not None:
            self.remove(dropped)
        return dropped

    def note_progress(self, connection: T) -> None:
        """Count a sign of life of a connection, if it is still here: it is now the last to be dropped."""
        source = self._sources.get(connection)
        if source is not None:
            mine = self._by_source[source]
            del mine[connection]
            mine[connection] = None

    def remove(self, connection: T) -> None:
        """Remove a connection that has proved itself or is gone, if it is still here."""
        source = self._sources.pop(connection, None)
        if source is not None:
            mine = self._by_source[source]
            del mine[connection]
            if not mine:
                del self._by_source[source]


def source_of(host: str) -> str:
    """Return the source of a connection from an IP address: the address, or the network of an IPv6 host."""
    address = ip_address(host.partition("%")[0])
    if isinstance(address, IPv6Address) and not address.is_loopback:
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return f"{IPv6Address(int(address) >> HOST_BITS << HOST_BITS)}/{HOST_BITS}"
    return str(address)
