"""No other host is ever told a wildcard or a loopback address, whatever one listens at."""

import socket
from collections.abc import Callable
from contextlib import closing
from ipaddress import ip_address
from typing import Any

import psutil
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestra.errors import UsageError
from orchestra.wire import addresses
from orchestra.wire.addresses import (
    advertised,
    beyond_host,
    candidates_of,
    interfaces,
    is_loopback,
    is_wildcard,
    on_this_host,
    parse_address,
    parse_ports,
)
from orchestra.wire.transports.registry import transport_for

Run = Callable[..., Any]
LOOPBACK = ["127.0.0.1", "127.8.9.1", "::1", "localhost", "LOCALHOST.", "x.localhost", "::ffff:127.0.0.1", "127.1"]
WILDCARDS = ["*", "0.0.0.0", "::", "0", "::ffff:0.0.0.0"]
HOSTS = st.one_of(
    st.sampled_from([*LOOPBACK, *WILDCARDS, "10.0.0.5", "head", "head.example.org", "fd00::5", "2001:db8::7", ""]),
    st.ip_addresses().map(str),
    st.integers(0, 2**32 - 1).map(hex),
    st.text(max_size=12),
)
PORTS = st.one_of(st.integers(-1, 70000).map(str), st.sampled_from(["", "0", "41000-41010", "5-3", "x"]))


def written(host: str) -> str:
    return f"[{host}]" if ":" in host else host


LISTEN = st.builds(
    lambda scheme, host, port: f"{scheme}://{written(host)}:{port}", st.sampled_from(["tcp", "tls"]), HOSTS, PORTS
)
ADVERTISE = st.lists(
    st.builds(lambda host, port: written(host) + (f":{port}" if port else ""), HOSTS, PORTS), max_size=3
)


@pytest.fixture(autouse=True)
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getfqdn", lambda: "head.example.org")


def numbers(host: str) -> list[Any]:
    """Return the numbers that the resolver of this host takes a number to be; names are not looked up."""
    flags = socket.AI_NUMERICHOST
    try:
        found = socket.getaddrinfo(host, 1, type=socket.SOCK_STREAM, flags=flags)
    except (OSError, UnicodeError):
        return []
    return [ip_address(str(where[0]).partition("%")[0]) for *_, where in found]


@given(LISTEN, PORTS, ADVERTISE)
@example("tls://*:0", "41000", [])
@example("tls://*:41000-41010", "", ["127.1"])
@example("tls://[::ffff:127.0.0.1]:0", "", [])
@example("tcp://localhost:1", "", ["0x7f000001"])
def test_no_wildcard_and_no_loopback_is_ever_advertised(listen: str, port: str, advertise: list[str]) -> None:
    try:
        first, _ = parse_ports(port)
        place = parse_address(listen)
        told = advertised(str(place._replace(first=first or 41000, last=first or 41000)), advertise)
    except UsageError:
        return
    for candidate in candidates_of(told):
        place = parse_address(candidate)
        assert 0 < place.first == place.last
        assert not is_wildcard(place.host)
        assert not is_loopback(place.host)
        assert place.host not in ("localhost", "*", "")
        for number in numbers(place.host):
            number = getattr(number, "ipv4_mapped", None) or number
            assert not number.is_loopback
            assert not number.is_unspecified


@pytest.mark.parametrize("host", LOOPBACK)
def test_loopback_is_recognised_however_it_is_written(host: str) -> None:
    assert is_loopback(host)
    assert not is_wildcard(host)
    assert advertised(f"tls://{written(host)}:5") == ""
    with pytest.raises(UsageError, match="is loopback: another host that dials it reaches itself"):
        advertised("tls://*:5", [written(host)])


@pytest.mark.parametrize("host", WILDCARDS)
def test_wildcards_are_recognised_however_they_are_written(host: str) -> None:
    assert is_wildcard(host)
    assert not is_loopback(host)
    with pytest.raises(UsageError, match="others cannot dial"):
        advertised("tls://*:5", [written(host)])


@pytest.mark.parametrize(
    ("advertise", "told"),
    [
        (["10.0.0.5"], "tls://10.0.0.5:41000"),
        (["10.0.0.5:7"], "tls://10.0.0.5:7"),
        (["fd00::5"], "tls://[fd00::5]:41000"),
        (["[fd00::5]:7"], "tls://[fd00::5]:7"),
        (["[fd00::5]"], "tls://[fd00::5]:41000"),
        (["head.example.org", "10.0.0.5"], "tls://head.example.org:41000,tls://10.0.0.5:41000"),
        (["a", "a"], "tls://a:41000"),
    ],
)
def test_what_the_user_advertises_is_all_that_others_are_told(advertise: list[str], told: str) -> None:
    assert advertised("tls://*:41000", advertise, known=["10.9.9.9"]) == told


@pytest.mark.parametrize("text", ["", ":7", "a:0", "a:1-5", "a:x", "a/b", "a,b", "a b", "fd00::5::7", "[]:7"])
def test_what_nobody_can_dial_is_not_advertised(text: str) -> None:
    with pytest.raises(UsageError):
        advertised("tls://*:41000", [text])


def interfaces_of(monkeypatch: pytest.MonkeyPatch, found: dict[str, list[str]], down: str = "") -> None:
    class Interface:
        def __init__(self, address: str) -> None:
            self.address = address
            self.family = socket.AF_INET6 if ":" in address else socket.AF_INET

    class State:
        def __init__(self, isup: bool) -> None:
            self.isup = isup

    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {k: [Interface(a) for a in v] for k, v in found.items()})
    monkeypatch.setattr(psutil, "net_if_stats", lambda: {name: State(name != down) for name in found})
    default = {4: ip_address("10.0.0.5"), 6: None}
    monkeypatch.setattr(addresses, "_default_source", default.get)


def test_the_default_route_comes_first_and_bridges_last(monkeypatch: pytest.MonkeyPatch) -> None:
    interfaces_of(
        monkeypatch,
        {
            "docker0": ["172.17.0.1"],
            "lo": ["127.0.0.1", "::1"],
            "ib0": ["192.168.7.5", "fe80::1%ib0"],
            "eth1": ["10.0.0.5", "2001:db8::5"],
            "eth2": ["10.3.0.5"],
        },
        down="eth2",
    )
    assert list(map(str, interfaces())) == ["10.0.0.5", "192.168.7.5", "2001:db8::5", "172.17.0.1"]
    assert advertised("tls://*:7", known=["10.9.9.9", "127.0.0.1"]) == (
        "tls://10.9.9.9:7,tls://10.0.0.5:7,tls://192.168.7.5:7,tls://[2001:db8::5]:7,tls://172.17.0.1:7,"
        "tls://head.example.org:7"
    )
    assert "2001" not in advertised("tls://0.0.0.0:7")


@pytest.mark.parametrize("name", ["localhost", "localhost.localdomain", "1.0.0.127.in-addr.arpa", "127.0.1.1", ""])
def test_a_name_that_says_nothing_to_others_is_left_out(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    interfaces_of(monkeypatch, {"eth1": ["10.0.0.5"]})
    monkeypatch.setattr(socket, "getfqdn", lambda: name)
    assert advertised("tls://*:7") == "tls://10.0.0.5:7"


def test_a_resolver_that_does_not_answer_does_not_delay_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    answers = threading.Event()
    monkeypatch.setattr(addresses, "NAME_S", 0.01)
    monkeypatch.setattr(socket, "getfqdn", lambda: "late" if answers.wait(60) else "")
    assert "late" not in advertised("tls://*:7")
    answers.set()


def test_processes_of_the_same_host_are_told_loopback() -> None:
    assert on_this_host("tls://*:7") == "tls://127.0.0.1:7"
    assert on_this_host("tls://[::]:7") == "tls://[::1]:7"
    assert on_this_host("tls://10.0.0.5:7") == "tls://10.0.0.5:7"


def test_only_candidates_that_others_can_reach_leave_a_host() -> None:
    assert beyond_host("unix:///x,tcp://127.0.0.1:7,tls://10.0.0.5:7") == "tls://10.0.0.5:7"
    assert beyond_host("unix:///x") == ""


# ─── listening ───


def test_a_star_listens_at_all_interfaces_on_one_port(run: Run) -> None:
    async def main() -> None:
        listener = await transport_for("tcp://*:0").listen("tcp://*:0", lambda connection: None)
        try:
            port = parse_address(listener.address).first
            assert listener.address == f"tcp://*:{port}"
            hosts = ["127.0.0.1"]
            with socket.socket(socket.AF_INET6) as probe:
                try:
                    probe.bind(("::1", 0))
                    hosts.append("::1")
                except OSError:
                    pass  # this host has no IPv6
            for host in hosts:
                with closing(socket.create_connection((host, port), timeout=10)):
                    pass
        finally:
            await listener.close()

    run(main())


def test_a_port_that_is_taken_names_its_holder_and_a_range_goes_on_to_the_next(run: Run) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            transport = transport_for("tcp://x:0")
            with pytest.raises(UsageError) as refused:
                await transport.listen(f"tcp://127.0.0.1:{port}", lambda connection: None)
            pid = psutil.Process().pid
            assert str(refused.value) == f"cannot listen at tcp://127.0.0.1:{port}: port {port} is taken (pid {pid})"
            last = min(port + 20, 65535)
            if last > port:
                listener = await transport.listen(f"tcp://127.0.0.1:{port}-{last}", lambda connection: None)
                assert port < parse_address(listener.address).first <= last
                await listener.close()

    run(main())


def test_a_range_without_a_free_port_is_named(run: Run) -> None:
    async def main() -> None:
        first = socket.create_server(("127.0.0.1", 0))
        with first:
            port = first.getsockname()[1]
            low = port if port < 65535 else port - 1
            try:
                second = socket.create_server(("127.0.0.1", low + 1 if low == port else low))
            except OSError:
                return  # taken by another process, which does as well, but may end at any time
            with second, pytest.raises(UsageError, match=rf"all ports from {low} to {low + 1} are taken"):
                await transport_for("tcp://x:0").listen(f"tcp://127.0.0.1:{low}-{low + 1}", lambda connection: None)

    run(main())


@pytest.mark.parametrize("address", ["tcp://*:1", "tcp://10.0.0.5:1-5"])
def test_an_address_to_listen_at_cannot_be_dialled(run: Run, address: str) -> None:
    async def main() -> None:
        with pytest.raises(UsageError, match="it is an address to listen at"):
            await transport_for(address).dial(address)

    run(main())
