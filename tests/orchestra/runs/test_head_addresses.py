"""The head listens at one address for its own host and at one for the others, and loopback is not told to these."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.errors import UsageError
from orchestra.runs.head_addresses import address_here, addresses_for_others, head_address
from orchestra.runs.hosts_options import HostsOptions, hosts_options
from orchestra.runs.plan import LISTEN, plan
from orchestra.wire.addresses import candidates_of, is_loopback, is_wildcard, parse_address, told_to_others

EXPERIMENT = Path(__file__).parents[3] / "experiments" / "qmix_8m.py"


def options(**more: object) -> HostsOptions:
    made = hosts_options({"hosts": "cpu1,cpu2", **more})
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("listen", "more", "encrypted", "listens"),
    [
        (LISTEN, {}, True, f"{LISTEN},tls://*:0"),
        (LISTEN, {}, False, f"{LISTEN},tcp://*:0"),
        (LISTEN, {"port": "41000-41010"}, True, f"{LISTEN},tls://*:41000-41010"),
        (LISTEN, {"hosts": "2", "launch": "local"}, True, f"{LISTEN},tls://127.0.0.1:0"),
        ("unix:///tmp/head", {"port": "5"}, True, "unix:///tmp/head,tls://*:5"),
        ("tcp://127.0.0.1:7", {}, True, "tcp://127.0.0.1:7,tls://*:0"),
        ("tls://10.0.0.5:7", {}, True, f"{LISTEN},tls://10.0.0.5:7"),
    ],
)
def test_the_head_listens_for_its_own_host_and_for_the_others(
    listen: str, more: dict[str, object], encrypted: bool, listens: str
) -> None:
    assert head_address(listen, LISTEN, options(**more), encrypted=encrypted) == listens


@pytest.mark.parametrize(
    ("listen", "more", "text"),
    [
        ("tls://10.0.0.5:7", {"port": "5"}, "--port 5: --listen tls://10.0.0.5:7 has a port already"),
        ("tcp://10.0.0.5:7", {}, "must begin with tls:// for the other hosts"),
        (LISTEN, {"port": "x"}, "a port is a number from 0 to 65535, or a range"),
        (LISTEN, {"port": "7-5"}, "a port is a number from 0 to 65535, or a range"),
        (LISTEN, {"advertise": ("localhost",)}, "is loopback: another host that dials it reaches itself"),
        (LISTEN, {"advertise": ("0.0.0.0",)}, "others cannot dial"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(listen: str, more: dict[str, object], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        head_address(listen, LISTEN, options(**more), encrypted=True)


@given(
    st.sampled_from([LISTEN, "tcp://127.0.0.1:7", "unix:///x", "tls://10.0.0.5:7", "tls://0.0.0.0:7", "tls://[::]:7"]),
    st.sampled_from(["", "0", "41000", "41000-41010"]),
    st.lists(st.sampled_from(["10.9.9.9", "head.example.org:7", "fd00::9"]), max_size=2),
)
def test_other_hosts_are_told_neither_loopback_nor_a_wildcard(listen: str, port: str, advertise: list[str]) -> None:
    more: dict[str, object] = {"port": port} if port else {}
    try:
        listens = head_address(listen, LISTEN, options(advertise=tuple(advertise), **more), encrypted=True)
    except UsageError:
        assert port
        assert "10.0.0.5" in listen or "0.0.0.0" in listen or "::" in listen
        return
    actual = [f"{address.rpartition(':')[0]}:4242" for address in candidates_of(listens)]
    listening = ",".join(told_to_others(address, advertise) for address in actual)
    assert address_here(listening) == actual[0]
    for candidate in addresses_for_others(listening):
        place = parse_address(candidate)
        assert place.scheme == "tls"
        assert not is_wildcard(place.host)
        assert not is_loopback(place.host)


def test_a_planned_run_over_hosts_is_encrypted_unless_that_is_turned_off() -> None:
    run = plan(EXPERIMENT, hosts="2", launch="local")
    assert run.listen == f"{LISTEN},tls://127.0.0.1:0"
    assert not run.launch.unencrypted
    plain = plan(EXPERIMENT, hosts="2", launch="local", tls="off")
    assert plain.listen == f"{LISTEN},tcp://127.0.0.1:0"
    assert plain.launch.unencrypted


def test_a_run_over_hosts_without_cryptography_is_refused_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cryptography", None)
    with pytest.raises(UsageError, match=r"pip install 'orchestra-rl\[hosts\]'"):
        plan(EXPERIMENT, hosts="2", launch="local")
    plan(EXPERIMENT, hosts="2", launch="local", tls="off")
