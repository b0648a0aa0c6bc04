"""The transports by the schemes of their addresses."""

from pathlib import Path

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


def transport_for(address: str, tls_dir: Path | None = None) -> Transport:
    """Return the transport of an address's scheme. For `tls://`, `tls_dir` is the folder of the certificates.

    Raises:
        UsageError: the scheme is unknown; the text lists the known ones.
    """
    scheme, separator, _ = address.partition("://")
    if not separator or scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise UsageError(f"cannot use the address {address!r}: it must begin with one of {known}")
    kind = SCHEMES[scheme]
    return TlsTransport(tls_dir) if kind is TlsTransport else kind()
