"""The transports by the schemes of their addresses."""

from orchestra.errors import UsageError
from orchestra.wire.addresses import candidates_of, is_loopback
from orchestra.wire.credentials import Credentials
from orchestra.wire.transports.base import Transport
from orchestra.wire.transports.memory import MemoryTransport
from orchestra.wire.transports.stream import TcpTransport, UnixTransport
from orchestra.wire.transports.tls import TlsTransport
from orchestra.wire.transports.tunnel import TunnelTransport

SCHEMES: dict[str, type[Transport]] = {
    "memory": MemoryTransport,
    "tcp": TcpTransport,
    "tls": TlsTransport,
    "tunnel": TunnelTransport,
    "unix": UnixTransport,
}


def transport_for(address: str, tls: Credentials | None = None) -> Transport:
    """Return the transport of an address's scheme, which for `tls://` and `tunnel://` uses the credentials `tls`.

    Raises:
        UsageError: the scheme is unknown; the text lists the known ones.
    """
    scheme, separator, _ = address.partition("://")
    if not separator or scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise UsageError(f"cannot use the address {address!r}: it must begin with one of {known}")
    kind = SCHEMES[scheme]
    return kind(tls) if issubclass(kind, TlsTransport | TunnelTransport) else kind()


def is_exposed(address: str) -> bool:
    """Return whether a candidate of an address is plain TCP beyond this host, where others may read and change all.

    A name other than `localhost` may be any host's.
    """
    places = (each.removeprefix("tcp://") for each in candidates_of(address) if each.startswith("tcp://"))
    return any(not is_loopback(place.rpartition(":")[0].strip("[]")) for place in places)


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
