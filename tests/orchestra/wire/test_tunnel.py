"""tunnel://: a Unix socket that leads to the port of a process on another host."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from orchestra import Axes, Message, Node, Request, UsageError
from orchestra.errors import NobodyListens, Unreachable
from orchestra.testing import Probe
from orchestra.wire.credentials import Credentials
from orchestra.wire.transports.registry import transport_for
from orchestra.wire.transports.tunnel import TunnelTransport, remove_dead_tunnels

Run = Callable[..., Any]
SECRET = bytes(range(32))


class ArrayMsg(Message):
    x: Annotated[NDArray[np.uint8], Axes("uint8", "bytes")]


class TwiceMsg(Request[int]):
    n: int


@contextlib.asynccontextmanager
async def forwarded(path: Path, address: str) -> AsyncIterator[None]:
    """Have a socket at `path` lead to a TCP address, as `ssh -R` does."""
    host, port = address.partition("://")[2].rsplit(":", 1)
    tasks: set[asyncio.Task[None]] = set()

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        other_reader, other_writer = await asyncio.open_connection(host, int(port))
        tasks.update([asyncio.create_task(pipe(reader, other_writer)), asyncio.create_task(pipe(other_reader, writer))])

    server = await asyncio.start_unix_server(accepted, path)
    async with server:
        yield
    with contextlib.suppress(FileNotFoundError):  # Python 3.13 removes it
        os.unlink(path)
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("scheme", ["tcp", "tls"])
def test_a_node_joins_and_talks_through_a_tunnel_without_shared_memory(
    run: Run, sockets: Path, certificates: Callable[..., Path], scheme: str
) -> None:
    tls = Credentials.of_folder(certificates("good")) if scheme == "tls" else None

    async def main() -> None:
        path = sockets / "head"
        async with Node("root", listen=f"{scheme}://127.0.0.1:0", secret=SECRET, tls=tls).running() as root:
            probe = Probe(ArrayMsg, TwiceMsg, answers={TwiceMsg: 4})
            address = probe.start(root, "probe").address
            async with (
                forwarded(path, root.listening),
                Node("leaf", join=f"tunnel://{path}", secret=SECRET, tls=tls).running() as leaf,
            ):
                rows = np.arange(1 << 20, dtype=np.uint8)
                await leaf.ref(address).tell(ArrayMsg(x=rows))
                assert await leaf.ref(address).ask(TwiceMsg(n=2)) == 4
                (message,) = await probe.heard(ArrayMsg, 1)
                np.testing.assert_array_equal(message.x, rows)
                (link,) = leaf.statistics().links
                assert link.memory_sent_bytes == 0
                assert link.memory != "shared"

    run(main())


@pytest.mark.parametrize("file", [False, True])
def test_a_tunnel_that_nobody_serves_does_not_mean_that_the_process_behind_it_is_dead(
    run: Run, sockets: Path, file: bool
) -> None:
    async def main() -> None:
        path = sockets / "head"
        if file:  # as sshd leaves it
            with socket.socket(socket.AF_UNIX) as sock:
                sock.bind(str(path))
        with pytest.raises(Unreachable) as caught:
            await transport_for(f"tunnel://{path}").dial(f"tunnel://{path}")
        assert not isinstance(caught.value, NobodyListens)
        path.unlink(missing_ok=True)

    run(main())


@pytest.mark.parametrize("address", ["tunnel://", "tunnel://head", "tunnel:///" + 100 * "x", "tunnel:///a\nb"])
def test_an_address_that_is_no_path_is_refused(run: Run, address: str) -> None:
    with pytest.raises(UsageError, match="absolute and at most 100 bytes long"):
        run(TunnelTransport().dial(address))


def test_nobody_listens_at_a_tunnel(run: Run) -> None:
    with pytest.raises(UsageError, match="a tunnel is for dialling only"):
        TunnelTransport().check("tunnel:///x")
    with pytest.raises(UsageError, match="a tunnel is for dialling only"):
        run(TunnelTransport().listen("tunnel:///x", lambda connection: None))


def test_sockets_that_dead_tunnels_have_left_are_removed_and_no_others(sockets: Path) -> None:
    with contextlib.ExitStack() as stack:
        for name in ("orchestra-dead.sock", "orchestra-live.sock", "another.sock"):
            sock = socket.socket(socket.AF_UNIX)
            sock.bind(str(sockets / name))
            if "live" in name:
                sock.listen()
                stack.callback(sock.close)
                (sockets / name).rename(sockets / "orchestra-elsewhere.sock")  # the system lists its old name alone
            else:
                sock.close()
        (sockets / "orchestra-file.sock").touch()
        remove_dead_tunnels(sockets)
        assert {path.name for path in sockets.iterdir()} == {
            "orchestra-elsewhere.sock",
            "another.sock",
            "orchestra-file.sock",
        }
        for path in sockets.iterdir():
            path.unlink()
