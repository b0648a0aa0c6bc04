"""tunnel:// reaches a process of another host through ssh: a Unix socket that `ssh -R` forwards to the other's port."""

import asyncio
import contextlib
import errno
import os
import socket
import ssl
import stat
from pathlib import Path
from typing import Any

from orchestra.errors import HandshakeError, Unreachable, UsageError
from orchestra.wire.credentials import Credentials, context
from orchestra.wire.transports.base import Accept, Listener
from orchestra.wire.transports.stream import HANDSHAKE_S, StreamConnection

TUNNELS = "orchestra-*.sock"
"""The names of the sockets that launchers have ssh make for agents."""
HEAD_START_S = 5.0
"""Seconds that the other addresses of a process have before its tunnel is tried: ssh encrypts all once more."""


class TunnelTransport:
    """`tunnel:///path/to/socket`, to dial only. The other process listens at a port of its own.

    With credentials the connection is one of `tls://`. It is never one between processes of one host. If no process
    answers at the socket, ssh may be dead rather than the other process.
    """

    def __init__(self, tls: Credentials | None = None) -> None:
        """Use the credentials `tls`; None where the run goes without TLS."""
        self._tls = tls

    def check(self, address: str) -> None:
        raise UsageError(f"cannot listen at {address}: a tunnel is for dialling only")

    async def listen(self, address: str, accept: Accept) -> Listener:
        raise UsageError(f"cannot listen at {address}: a tunnel is for dialling only")

    async def clear(self, address: str) -> None:
        """Do nothing: the socket is removed by the process that it was made for."""

    async def dial(self, address: str) -> StreamConnection:
        path = tunnel_path(address)
        options: dict[str, Any] = {}
        if self._tls is not None:
            encrypted = context(self._tls, dialing=True)
            options = {"ssl": encrypted, "server_hostname": "", "ssl_handshake_timeout": HANDSHAKE_S}
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_unix_connection(_TunnelConnection, path, **options)
        except ssl.SSLError as error:
            raise HandshakeError(f"{address} does not show a certificate of this run: {error.reason}") from error
        except OSError as error:
            raise Unreachable(f"no process answers at {address}: {error.strerror or error}") from error
        return connection


class _TunnelConnection(StreamConnection):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.local = False  # the socket is on this host, the other process is not


def remove_dead_tunnels(folder: Path) -> None:
    """Remove the sockets of this user's tunnels in `folder` that no ssh server forwards any more: sshd leaves them."""
    try:
        listening = set(Path("/proc/net/unix").read_text().split())
    except OSError:
        listening = set()
    for path in folder.glob(TUNNELS):
        found = path.lstat()
        if str(path) in listening or not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.getuid():
            continue
        with socket.socket(socket.AF_UNIX) as sock, contextlib.suppress(OSError):  # another process may remove it
            sock.setblocking(False)
            if sock.connect_ex(str(path)) == errno.ECONNREFUSED:
                path.unlink()


def tunnel_path(address: str) -> str:
    """Return the path of the socket of a `tunnel://` address.

    Raises:
        UsageError: it is none.
    """
    path = address.removeprefix("tunnel://")
    if path == address or not path.startswith("/") or not path.isprintable() or len(path.encode()) > 100:
        raise UsageError(
            f"cannot use the address {address!r}: write tunnel:///PATH, absolute and at most 100 bytes long"
        )
    return path
