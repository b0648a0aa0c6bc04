"""Addresses of hosts: where a process listens, and the addresses at which others may reach it.

An address to dial may be several *candidates*, separated by commas, best first. An address to listen at may have the
host `*`, which binds all interfaces, and a range of ports, of which the first free one is taken:
`tls://*:41000-41010`. Neither is ever told to another process. Others are told candidates: never a wildcard, and
loopback only to processes of this host.
"""

import contextlib
import socket
import threading
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple

import psutil

from orchestra.errors import UsageError

ANY = "*"
"""The host of an address to listen at on all interfaces, of IPv4 and IPv6."""
ALL_INTERFACES = (ANY, "0.0.0.0", "::")  # noqa: S104 (names for it)
PORTS = 65536
NAME_S = 1.0
"""Seconds that the resolver may take for the name of this host."""
_BRIDGES = ("docker", "br-", "virbr", "veth", "cni", "podman", "lxc")
"""Beginnings of the names of interfaces within a host, whose addresses other hosts often have, too."""
_ELSEWHERE = {4: "192.0.2.1", 6: "2001:db8::1"}
"""Addresses of no host, for which the system names the interface of its default route."""


class Place(NamedTuple):
    """The parts of `tcp://HOST:PORT` or `tls://HOST:PORT`."""

    scheme: str
    host: str
    """Without brackets."""
    first: int
    """The port, or the first of a range."""
    last: int

    def __str__(self) -> str:
        return format_address(self.scheme, self.host, self.first, self.last)


def format_address(scheme: str, host: str, first: int, last: int | None = None) -> str:
    """Return an address with a port, or with a range of ports."""
    ports = f"{first}" if last in (None, first) else f"{first}-{last}"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{ports}"


def parse_address(address: str) -> Place:
    """Return the parts of a single address with a host and a port.

    Raises:
        UsageError: it is malformed.
    """
    scheme, _, rest = address.partition("://")
    host, separator, ports = rest.rpartition(":")
    try:
        if not separator or not _is_host(host):
            raise UsageError("there is no host")
        first, last = parse_ports(ports)
    except UsageError:
        text = f"write {scheme}://HOST:PORT, PORT from 0 to {PORTS - 1}"
        raise UsageError(f"cannot use the address {address!r}: {text}") from None
    return Place(scheme, host.strip("[]"), first, last)


def parse_ports(text: str) -> tuple[int, int]:
    """Return the first and the last port of `N` or `A-B`.

    Raises:
        UsageError: it is neither.
    """
    first, separator, last = text.partition("-")
    ends = (first, last if separator else first)
    if all(end.isascii() and end.isdecimal() and int(end) < PORTS for end in ends):
        low, high = map(int, ends)
        if low == high or 0 < low < high:
            return low, high
    raise UsageError(f"a port is a number from 0 to {PORTS - 1}, or a range of them such as 41000-41010, not {text!r}")


def candidates_of(address: str) -> tuple[str, ...]:
    """Return the candidates that an address to dial consists of, best first."""
    return tuple(part for part in map(str.strip, address.split(",")) if part)


def is_wildcard(host: str) -> bool:
    """Return whether a host of an address stands for all interfaces."""
    if host == ANY:
        return True
    number = _number(host)
    return number is not None and (number.is_unspecified or _plain(number).is_unspecified)


def is_loopback(host: str) -> bool:
    """Return whether a host of an address always means the host that dials it."""
    name = host.rstrip(".").lower()
    if name in ("localhost", "ip6-localhost", "ip6-loopback") or name.startswith("localhost."):
        return True
    number = _number(host)
    return name.endswith(".localhost") or (number is not None and _plain(number).is_loopback)


def beyond_host(address: str) -> str:
    """Return the candidates of an address to dial that other hosts may reach; empty if there are none."""
    there = [each for each in candidates_of(address) if each.startswith(("tcp://", "tls://"))]
    return ",".join(each for each in there if not is_loopback(parse_address(each).host))


def advertised(listening: str, advertise: Sequence[str] = (), known: Sequence[str] = ()) -> str:
    """Return the candidates for a listener, best first; empty if no other host can reach it.

    Args:
        listening: the address where it listens, with its actual port; a wildcard stands for all interfaces.
        advertise: `HOST` or `HOST:PORT`, where others reach this host as the user says. Nothing else is then told.
        known: hosts that come before the addresses of the interfaces, such as one from which this host is seen.

    Raises:
        UsageError: `advertise` names a wildcard or the loopback interface, or is malformed.
    """
    place = parse_address(listening)
    if advertise:
        return ",".join(dict.fromkeys(str(_named(place, text)) for text in advertise))
    hosts: Iterable[str] = [place.host]
    if is_wildcard(place.host):
        hosts = [*known, *map(str, interfaces(ipv6=place.host in (ANY, "::"))), *_own_name()]
    hosts = [host for host in hosts if not is_wildcard(host) and not is_loopback(host)]
    return ",".join(dict.fromkeys(format_address(place.scheme, host, place.first) for host in hosts))


def told_to_others(listening: str, advertise: Sequence[str] = ()) -> str:
    """Return the candidates that a node tells its peers, for one address where it listens.

    An address of the loopback interface, a socket file or a name in memory is told as it is: only this host can use
    it. So is a wildcard on a host without any other interface.
    """
    if not listening.startswith(("tcp://", "tls://")):
        return listening
    host = parse_address(listening).host
    if is_loopback(host) or not (advertise or is_wildcard(host)):
        return listening
    return advertised(listening, advertise) or on_this_host(listening)


def on_this_host(listening: str) -> str:
    """Return the address at which processes of this host reach a listener on all interfaces; else its own."""
    place = parse_address(listening)
    if not is_wildcard(place.host):
        return listening
    return format_address(place.scheme, "::1" if place.host == "::" else "127.0.0.1", place.first)


def interfaces(*, ipv6: bool = True) -> tuple[IPv4Address | IPv6Address, ...]:
    """Return the addresses of this host that other hosts may reach, best first.

    The interface of the default route comes first, and those of bridges within this host last. Addresses of one link
    are left out: they mean nothing without the name of an interface of the dialling host.
    """
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    default = [address for address in map(_default_source, (4, 6)) if address is not None]
    found: list[tuple[tuple[bool, bool, int], IPv4Address | IPv6Address]] = []
    for name, addresses in psutil.net_if_addrs().items():
        for each in addresses:
            number = _number(each.address) if each.family in (socket.AF_INET, socket.AF_INET6) else None
            if number is None or name not in up or (number.version == 6 and not ipv6):
                continue
            if number.is_loopback or number.is_link_local or number.is_unspecified or number.is_multicast:
                continue
            found.append(((name.startswith(_BRIDGES), number not in default, number.version), number))
    return tuple(dict.fromkeys(number for _, number in sorted(found, key=lambda each: each[0])))


def _default_source(version: int) -> IPv4Address | IPv6Address | None:
    """Return the address with which this host dials far ones. Nothing is sent."""
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((_ELSEWHERE[version], 9))
        return _number(probe.getsockname()[0])
    return None


def _own_name() -> list[str]:
    """Return the full name of this host, unless it means nothing to others or the resolver is slow."""
    found: list[str] = []
    asking = threading.Thread(target=lambda: found.append(socket.getfqdn()), daemon=True)
    asking.start()
    asking.join(NAME_S)
    return [name for name in found if _is_host(name) and _number(name) is None and not name.endswith(".arpa")]


def names_port(named: str) -> bool:
    """Return whether what others are told of this host, `HOST` or `HOST:PORT`, has a port."""
    return bool(_host_and_port(named)[1])


def _host_and_port(named: str) -> tuple[str, str]:
    if not named.startswith("[") and named.count(":") != 1:
        return named, ""
    host, _, port = named.partition("]") if named.startswith("[") else named.partition(":")
    return host.strip("[]"), port.removeprefix(":")


def _named(place: Place, text: str) -> Place:
    """Return where `HOST` or `HOST:PORT` is, with the scheme of `place`, and by default its port."""
    host, port = _host_and_port(text)
    if not _is_host(host) or is_wildcard(host) or "/" in host or (":" in host and _number(host) is None):
        raise UsageError(
            f"--advertise: others cannot dial {text!r}; write the HOST or HOST:PORT where they reach this host"
        )
    if is_loopback(host):
        raise UsageError(f"--advertise: {text!r} is loopback: another host that dials it reaches itself")
    first, last = (place.first, place.first) if not port else parse_ports(port)
    if first != last or not first:
        raise UsageError(f"--advertise: others can dial one port, not {port!r}")
    return Place(place.scheme, host, first, first)


def _number(host: str) -> IPv4Address | IPv6Address | None:
    """Return the address that a host is, unless it is a name."""
    try:
        return ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        pass
    with contextlib.suppress(OSError, UnicodeError):  # `127.1` and `0x7f000001` are addresses for the resolver, too
        return IPv4Address(socket.inet_aton(host))
    return None


def _plain(number: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address that an IPv6 address stands for, if it does."""
    return (number.ipv4_mapped or number) if isinstance(number, IPv6Address) else number


def _is_host(name: str) -> bool:
    try:
        name.encode("idna")  # as the resolver will
    except UnicodeError:
        return False
    return bool(name.strip("[]")) and name.isprintable() and "," not in name and " " not in name
