"""Every transport keeps one contract; what only sockets have (ports, files) is here too."""

import asyncio
import os
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from orchestra import Unreachable, UsageError
from orchestra.testing import check_transport
from orchestra.wire.transports.base import Transport
from orchestra.wire.transports.memory import MemoryTransport
from orchestra.wire.transports.registry import transport_for
from orchestra.wire.transports.stream import TcpTransport, UnixTransport

Run = Callable[..., Any]


@pytest.mark.parametrize("scheme", ["memory", "tcp", "unix"])
def test_a_transport_keeps_the_contract(scheme: str, run: Run, address_of: Callable[[str], str]) -> None:
    run(check_transport(address_of(scheme)))


def test_a_transport_keeps_the_contract_on_asyncio_s_own_loop(address_of: Callable[[str], str]) -> None:
    with asyncio.Runner() as runner:
        for scheme in ("tcp", "unix"):
            runner.run(check_transport(address_of(scheme)))
            runner.run(asyncio.sleep(0))  # what was closed last is gone in the next turn


class Deaf(MemoryTransport):
    """Dials nobody, and says so with the wrong error."""

    async def dial(self, address: str) -> Any:
        raise UsageError("wrong number")


class Forgetful(MemoryTransport):
    """Connections that lose what waits for a receiver."""

    async def dial(self, address: str) -> Any:
        connection = await super().dial(address)
        send = connection.send
        connection.send = lambda pieces: send(pieces[:1])  # type: ignore[method-assign]  # a broken one, on purpose
        return connection


@pytest.mark.parametrize("broken", [Deaf, Forgetful])
def test_the_conformance_suite_notices_a_transport_that_breaks_it(
    broken: type[Transport], run: Run, monkeypatch: pytest.MonkeyPatch, address_of: Callable[[str], str]
) -> None:
    monkeypatch.setattr("orchestra.testing.transport_for", lambda address: broken())

    monkeypatch.setattr("orchestra.testing.ARRIVAL_S", 0.2)  # no test that passes waits so long
    with pytest.raises((AssertionError, UsageError), match=r"wrong number|expected .* within 0\.2 s, got \d+ frames"):
        run(check_transport(address_of("memory")))


def test_an_address_of_an_unknown_scheme_is_refused_with_the_known_ones() -> None:
    for address in ("udp://x", "localhost:80", ""):
        with pytest.raises(UsageError) as caught:
            transport_for(address)
        # A simulation, where there was one in this process, has made its own scheme known besides.
        assert str(caught.value).removesuffix(", sim://") == (
            f"cannot use the address {address!r}: it must begin with one of memory://, tcp://, tls://, tunnel://, unix://"
        )


@pytest.mark.parametrize(
    "address", ["tcp://", "tcp://host", "tcp://:80", "tcp://host:", "tcp://host:http", "tcp://host:65536", "tcp://h:²"]
)
def test_a_malformed_tcp_address_is_refused(run: Run, address: str) -> None:
    for act in (TcpTransport().dial, lambda it: TcpTransport().listen(it, lambda connection: None)):
        with pytest.raises(UsageError, match="write tcp://HOST:PORT, PORT from 0 to 65535"):
            run(_done(act(address)))


@pytest.mark.parametrize("address", ["unix://", "unix://relative/path", "unix:///" + "x" * 100])
def test_a_malformed_unix_address_is_refused(run: Run, address: str) -> None:
    for act in (UnixTransport().dial, lambda it: UnixTransport().listen(it, lambda connection: None)):
        with pytest.raises(UsageError, match="write unix:///PATH, absolute and at most 100 bytes long"):
            run(_done(act(address)))


async def _done(work: Awaitable[Any]) -> Any:
    return await work


def test_a_free_port_is_filled_into_the_address(run: Run) -> None:
    async def main() -> None:
        listener = await TcpTransport().listen("tcp://127.0.0.1:0", lambda connection: None)
        await listener.close()
        host, _, port = listener.address.rpartition(":")
        assert host == "tcp://127.0.0.1"
        assert 0 < int(port) < 65536

    run(main())


def test_the_file_of_a_unix_socket_is_its_owner_s_alone_and_goes_with_it(
    run: Run, sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sockets / "s"
    monkeypatch.setattr(os, "chmod", None)  # which would leave a moment before it

    async def main() -> None:
        usual = os.umask(0)
        try:
            listener = await UnixTransport().listen(f"unix://{path}", lambda connection: None)
        finally:
            assert os.umask(usual) == 0
        mode = stat.S_IMODE(path.stat().st_mode)
        await listener.close()
        assert mode == 0o600
        assert not path.exists()
        await listener.close()

    run(main())


def left_behind(path: Path) -> None:
    """What a process that was killed leaves: a socket file that nobody listens at."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.exists()


def test_a_socket_file_that_a_dead_process_left_behind_is_replaced(run: Run, sockets: Path) -> None:
    path = sockets / "s"
    left_behind(path)
    run(check_transport(f"unix://{path}"))


def test_what_a_dead_process_left_behind_can_be_cleared(run: Run, sockets: Path) -> None:
    path = sockets / "s"
    left_behind(path)
    run(_done(UnixTransport().clear(f"unix://{path}")))
    assert not path.exists()
    run(_done(UnixTransport().clear(f"unix://{path}")))  # nothing there is nothing to do


def test_a_socket_that_somebody_listens_at_is_left_alone(run: Run, sockets: Path) -> None:
    path = sockets / "s"
    with socket.socket(socket.AF_UNIX) as alive:
        alive.bind(str(path))
        alive.listen()
        for act in (UnixTransport().clear, lambda it: UnixTransport().listen(it, lambda connection: None)):
            with pytest.raises(UsageError, match=f"^cannot listen at unix://{path}: another process does$"):
                run(_done(act(f"unix://{path}")))
        assert path.exists()
    path.unlink()


def test_a_file_that_is_no_socket_is_left_alone(run: Run, sockets: Path) -> None:
    path = sockets / "notes.txt"
    path.write_text("precious")
    with pytest.raises(UsageError, match="there is a file that is no socket"):
        run(_done(UnixTransport().listen(f"unix://{path}", lambda connection: None)))
    assert path.read_text() == "precious"


def test_a_socket_in_a_folder_that_is_not_there_is_a_usage_error(run: Run, sockets: Path) -> None:
    with pytest.raises(UsageError, match="No such file or directory"):
        run(_done(UnixTransport().listen(f"unix://{sockets}/none/s", lambda connection: None)))


@pytest.mark.parametrize("scheme", ["memory", "tcp", "unix"])
def test_dialling_where_nobody_listens_says_so(scheme: str, run: Run, address_of: Callable[[str], str]) -> None:
    address = address_of(scheme).replace(":0", ":1")
    with pytest.raises(Unreachable, match=f"^no process (answers|listens) at {address}"):
        run(_done(transport_for(address).dial(address)))


@pytest.mark.parametrize(
    ("scheme", "source", "local"),
    [("tcp", "127.0.0.1", True), ("tcp", "127.0.0.2", False), ("unix", None, True)],
)
def test_a_peer_with_another_address_than_ours_is_not_on_this_host(
    run: Run, address_of: Callable[[str], str], scheme: str, source: str | None, local: bool
) -> None:
    async def main() -> None:
        accepted: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        listener = await transport_for(address_of(scheme)).listen(address_of(scheme), accepted.set_result)
        if source is None:
            dialled = await UnixTransport().dial(listener.address)
        else:
            dialled = await TcpTransport()._reach(listener.address, local_addr=(source, 0))
        ends = dialled, await accepted
        for connection in ends:
            connection.abort()
        await listener.close()
        assert [connection.local for connection in ends] == [local, local]

    run(main())


def test_descriptors_do_not_pile_up(run: Run, address_of: Callable[[str], str]) -> None:
    run(check_transport(address_of("unix")))
    before = len(os.listdir("/proc/self/fd"))
    for scheme in ("tcp", "unix"):
        run(check_transport(address_of(scheme)))
    assert len(os.listdir("/proc/self/fd")) == before
