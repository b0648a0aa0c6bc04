"""The transports by the schemes of their addresses."""

from ipaddress import ip_address
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


def is_exposed(address: str) -> bool:
    """Return whether an address is plain TCP beyond this host: others may read and change what goes there."""
    scheme, _, place = address.partition("://")
    host = place.rpartition(":")[0].strip("[]")
    if scheme != "tcp" or host == "localhost":
        return False
    try:
        return not ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return True  # a name, which may be any host's


def check_exposure(address: str, *, allowed: bool) -> bool:
    """Return whether an address is exposed.

    Raises:
        UsageError: it is, and that is not allowed.
    """
    exposed = is_exposed(address)
    if exposed and not allowed:
        raise UsageError(
            f"{address} is plain TCP beyond this host: others could read and change all messages; "
            "write tls://HOST:PORT, or allow it with unencrypted=True"
        )
    return exposed
