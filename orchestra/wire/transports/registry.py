"""The transports by the schemes of their addresses."""

from orchestra.errors import UsageError
from orchestra.wire.transports.base import Transport
from orchestra.wire.transports.memory import MemoryTransport
from orchestra.wire.transports.stream import TcpTransport, UnixTransport
from orchestra.wire.transports.tls import TlsTransport

SCHEMES: dict[str, type[Transport]] = {
    "memory": MemoryTransport,
    "tcp": TcpTransport,
    "tls": TlsTransport,
    "unix": UnixTransport,
}


def transport_for(address: str) -> Transport:
    """Return the transport of an address's scheme.

    Raises:
        UsageError: the scheme is unknown; the text lists the known ones.
    """
    scheme, separator, _ = address.partition("://")
    if not separator or scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise UsageError(f"cannot use the address {address!r}: it must begin with one of {known}")
    return SCHEMES[scheme]()
