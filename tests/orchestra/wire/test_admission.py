"""Connections that have not proved themselves are bounded, and keep nobody out."""

import asyncio
import resource
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestra import Message, Node
from orchestra.testing import Probe
from orchestra.wire.admission import MAX_PER_SOURCE, MAX_UNPROVEN, Admission, source_of
from orchestra.wire.transports.stream import StreamConnection
from orchestra.wire.transports.tls import TLS_DIR_VARIABLE

Run = Callable[..., Any]
FLOOD = 1000


class CountMsg(Message):
    n: int


def test_the_connection_that_was_silent_for_longest_is_dropped_first() -> None:
    admission: Admission[int] = Admission()
    assert [admission.add(n, "host") for n in range(MAX_PER_SOURCE)] == [None] * MAX_PER_SOURCE
    admission.note_progress(0)
    admission.remove(1)
    admission.note_progress(1)  # which is gone
    assert admission.add(1000, "host") is None
    assert [admission.add(1000 + n, "host") for n in range(1, 4)] == [2, 3, 4]
    assert len(admission) == MAX_PER_SOURCE
    dropped = [admission.add(2000 + n, "host") for n in range(MAX_PER_SOURCE)]
    assert dropped.index(0) == MAX_PER_SOURCE - 5  # its sign of life came after all that were there
    for n in range(MAX_PER_SOURCE):
        admission.remove(2000 + n)
    assert (len(admission), admission._by_source, admission._sources) == (0, {}, {})


def test_a_flood_from_many_sources_takes_the_place_of_no_connection_from_another() -> None:
    admission: Admission[tuple[str, int]] = Admission()
    admission.add(("honest", 0), "honest")
    for n in range(10 * MAX_UNPROVEN):
        source = f"flooder-{n % 3}"
        dropped = admission.add((source, n), source)
        assert dropped is None or dropped[0].startswith("flooder")
        assert len(admission) <= MAX_UNPROVEN
        assert all(len(each) <= MAX_PER_SOURCE for each in admission._by_source.values())
    assert admission.add(("honest", 1), "honest") is not None
    assert len(admission) == MAX_UNPROVEN
    assert admission._by_source["honest"] == {("honest", 0): None, ("honest", 1): None}


@pytest.mark.parametrize(
    ("host", "source"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::1"),
    ],
)
def test_an_ipv6_host_cannot_pass_for_many(host: str, source: str) -> None:
    assert source_of(host) == source


FLOODER = """
import selectors, socket, sys
host, port, source, count = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
selector, opened = selectors.DefaultSelector(), 0
selector.register(sys.stdin, selectors.EVENT_READ)
def dial():
    global opened
    sock = socket.socket()
    sock.setblocking(False)
    sock.bind((source, 0))
    sock.connect_ex((host, port))
    selector.register(sock, selectors.EVENT_READ)
    opened += 1
    if opened % count == 0:
        print(opened, flush=True)
for _ in range(count):
    dial()
while True:
    for key, _ in selector.select():
        if key.fileobj is sys.stdin:
            sys.exit()
        try:
            said = key.fileobj.recv(1000)
        except OSError:
            said = b""
        if not said:
            selector.unregister(key.fileobj)
            key.fileobj.close()
            dial()
"""


@asynccontextmanager
async def flooded(address: str, source: str) -> AsyncIterator[asyncio.StreamReader]:
    """Keep so many silent connections open to `address`; yield a stream with a line for each that many."""
    host, port = address.partition("://")[2].split(":")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < FLOOD + 100:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(2 * FLOOD, hard), hard))
    command = [sys.executable, "-c", FLOODER, host, port, source, str(FLOOD)]
    flooder = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert flooder.stdin is not None
    assert flooder.stdout is not None
    try:
        yield flooder.stdout
    finally:
        flooder.stdin.close()
        await flooder.stdout.read()
        await flooder.wait()


def open_sockets() -> int:
    """Return the number of TCP sockets of this process."""
    return len(psutil.Process().net_connections(kind="tcp"))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 (the kernel closes sockets without an event)
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("scheme", ["tcp", "tls"])
@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.2"], ids=["own source", "another source"])
def test_a_node_joins_while_a_thousand_silent_connections_keep_coming_and_nothing_is_left_of_them(
    run: Run, scheme: str, source: str, certificates: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TLS_DIR_VARIABLE, str(certificates("flooded")))
    # No deadline passes: the silent connections make room because later ones come.
    monkeypatch.setattr("orchestra.wire.handshake.PROOF_SECONDS", 600.0)
    monkeypatch.setattr("orchestra.wire.transports.stream.HANDSHAKE_S", 600.0)

    async def main() -> None:
        async with Node("root", listen=f"{scheme}://127.0.0.1:0").running() as root:
            probe = Probe(CountMsg)
            ref = probe.start(root, "probe")
            listener: Any = root.peers._listeners[0]
            sockets, tasks = open_sockets(), asyncio.all_tasks()
            async with flooded(root.listening, source) as opened:
                assert int(await opened.readline()) == FLOOD
                for n in range(3):
                    async with Node(f"leaf{n}", join=root.listening, secret=root.secret).running() as leaf:
                        await leaf.ref(ref.address).tell(CountMsg(n=n))
                        assert len(listener._admission) <= MAX_PER_SOURCE + 1
                        assert len(root.peers._acceptor._admission) <= MAX_PER_SOURCE + 1
                    await probe.heard(CountMsg, n + 1)
                assert int(await opened.readline()) > FLOOD  # they still come
            await until(lambda: not listener._beginning and not root.peers._acceptor._handshakes)
            assert len(listener._admission) == len(root.peers._acceptor._admission) == 0
            await until(lambda: open_sockets() == sockets)
            await until(lambda: asyncio.all_tasks() == tasks)

    run(main())


def test_a_closed_connection_leaves_no_timer(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[StreamConnection] = []
    lose = StreamConnection.connection_lost
    monkeypatch.setattr(StreamConnection, "connection_lost", lambda *given: (lost.append(given[0]), lose(*given)))

    async def main() -> None:
        async with Node("root", listen="tcp://127.0.0.1:0").running() as root:
            async with Node("leaf", join=root.listening, secret=root.secret).running():
                pass
            await until(lambda: len(lost) == 2)

    run(main())
    timers = [connection._lingering for connection in lost if connection._lingering is not None]
    assert timers
    assert all(timer.cancelled() for timer in timers)
