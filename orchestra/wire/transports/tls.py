"""tls:// is TCP with TLS. Certificates of both sides are signed by the run's own authority.

Any certificate of that authority belongs to the run, whatever the host, so names in certificates are not compared. Both
sides still prove that they know the run's secret.
"""

import asyncio
import contextlib
import os
import socket
import ssl
import stat
from functools import cache, partial
from pathlib import Path

from orchestra import log
from orchestra.errors import UsageError
from orchestra.wire.transports.base import Accept
from orchestra.wire.transports.stream import StreamConnection, TcpTransport

TLS_DIR_VARIABLE = "ORCHESTRA_TLS_DIR"
"""Names the folder with `ca.pem`, `cert.pem` and `key.pem`, where no `tls_dir` is given."""
FILES = ("ca.pem", "cert.pem", "key.pem")
HANDSHAKE_S = 5.0
"""Seconds that the TLS handshake may take. Our own handshake after it has its own limit."""
MAX_HANDSHAKES = 64
"""Concurrent TLS handshakes of one listener. Further connections are closed, and their peers try again."""
BACKLOG = 100
"""Connections that the system queues until they are accepted."""
PAUSE_S = 1.0
"""Seconds to wait after an accept has failed."""


def folder_of_environment() -> Path | None:
    """Return the folder that `ORCHESTRA_TLS_DIR` names, if it is set."""
    folder = os.environ.get(TLS_DIR_VARIABLE, "")
    return Path(folder).absolute() if folder else None


class TlsTransport(TcpTransport):
    """`tls://host:port`, for hosts on an untrusted network."""

    scheme = "tls"

    def __init__(self, folder: Path | None = None) -> None:
        """Use the certificates in `folder`, by default the folder that `ORCHESTRA_TLS_DIR` names."""
        self._folder = folder

    def check(self, address: str) -> None:
        super().check(address)
        self._context(dialing=False)

    async def listen(self, address: str, accept: Accept) -> "TlsListener":
        host, port = self._host_port(address)
        context = self._context(dialing=False)
        sockets: list[socket.socket] = []
        try:
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, where in dict.fromkeys((family, where) for family, _, _, _, where in found):
                sockets.append(socket.create_server((where[0], port, *where[2:]), family=family, backlog=BACKLOG))
                port = sockets[0].getsockname()[1]
        except OSError as error:
            for sock in sockets:
                sock.close()
            raise UsageError(f"cannot listen at {address}: {error.strerror or error}") from error
        return TlsListener(self._address(host, port), sockets, context, accept)

    async def dial(self, address: str) -> StreamConnection:
        return await self._reach(address, ssl=self._context(dialing=True), ssl_handshake_timeout=HANDSHAKE_S)

    def _context(self, *, dialing: bool) -> ssl.SSLContext:
        folder = self._folder or folder_of_environment()
        if folder is None:
            raise UsageError(f"tls:// needs certificates: --tls-dir, or {TLS_DIR_VARIABLE}, names their folder")
        return credentials(folder, dialing=dialing)


class TlsListener:
    """Accepts a bounded number of connections at a time. The event loop's own server would begin any number."""

    def __init__(self, address: str, sockets: list[socket.socket], context: ssl.SSLContext, accept: Accept) -> None:
        self.address = address
        self._sockets = sockets
        self._context = context
        self._accept = accept
        self._under_way: set[asyncio.Task[None]] = set()
        self._refusing = False
        loop = asyncio.get_running_loop()
        self._accepting = [loop.create_task(self._accept_from(sock), name=f"{address}: accept") for sock in sockets]

    async def close(self) -> None:
        """Accept no more connections. Existing ones stay open."""
        ending = [*self._accepting, *self._under_way]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        for sock in self._sockets:
            sock.close()

    async def _accept_from(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, peer = await loop.sock_accept(sock)
            except OSError as error:
                log.get().warning("cannot accept a connection", reason=error.strerror)
                await asyncio.sleep(PAUSE_S)  # most likely out of file descriptors
                continue
            if len(self._under_way) < MAX_HANDSHAKES:
                self._refusing = False
                task = loop.create_task(self._shake_hands(client), name=f"{self.address}: handshake")
                self._under_way.add(task)
                task.add_done_callback(partial(self._over, client))
                continue
            client.close()
            if not self._refusing:  # one log line for a flood
                self._refusing = True
                log.get().warning("too many TLS handshakes at once", peer=f"{peer[0]}:{peer[1]}")

    def _over(self, client: socket.socket, task: "asyncio.Task[None]") -> None:
        self._under_way.discard(task)
        if task.cancelled():
            client.close()  # its handshake may not have begun

    async def _shake_hands(self, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        new = partial(StreamConnection, self._accept)
        with contextlib.suppress(OSError):  # not a member of the run, or gone; TLS has told it
            await loop.connect_accepted_socket(new, client, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_S)


@cache
def credentials(folder: Path, *, dialing: bool) -> ssl.SSLContext:
    """Return the TLS context for one side of a connection, from the files in `folder`.

    Raises:
        UsageError: a file is missing or invalid, or other users can read the key.
    """
    ca, cert, key = (folder / name for name in FILES)
    try:
        mode = stat.S_IMODE(key.stat().st_mode)
        if mode & 0o077:
            raise UsageError(f"{str(key)!r} has mode {mode:04o}: others could read the key; chmod it to 0600")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if dialing else ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(ca)
        context.load_cert_chain(cert, key, password="")  # None would have OpenSSL ask at the terminal
    except ssl.SSLError as error:
        raise UsageError(f"cannot use the certificates in {str(folder)!r}: {error.reason or error}") from None
    except OSError as error:
        missing = next((str(path) for path in (ca, cert, key) if not path.is_file()), str(folder))
        raise UsageError(f"cannot read {missing!r}: {error.strerror}; tls:// needs {', '.join(FILES)}") from None
    return context
