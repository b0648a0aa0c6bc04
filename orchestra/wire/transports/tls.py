"""tls://: tcp with both sides' certificates signed by the run's own authority.

The authority is the run's: whoever holds a certificate of it belongs to the run, whatever host it is on, so names in
certificates are not compared. Both sides still prove that they know the run's secret.
"""

import asyncio
import contextlib
import os
import socket
import ssl
import stat
from functools import cache, partial
from pathlib import Path
from typing import Any

from orchestra import log
from orchestra.errors import UsageError
from orchestra.wire.transports.base import Accept
from orchestra.wire.transports.stream import StreamConnection, TcpTransport

TLS_DIR_VARIABLE = "ORCHESTRA_TLS_DIR"
"""Names the folder with `ca.pem`, `cert.pem` and `key.pem`; what a run launches inherits it."""
FILES = ("ca.pem", "cert.pem", "key.pem")
HANDSHAKE_S = 5.0
"""How long the handshake of TLS may take; what comes after it is bounded by ours."""
MAX_HANDSHAKES = 64
"""Handshakes of TLS under way at one listener; one more caller is turned away, and tries again."""
BACKLOG = 100
"""Callers that the system keeps until they are taken."""
PAUSE_S = 1.0
"""How long to wait after the system would not hand over a caller."""


def folder_of(address: str) -> str:
    """Return the folder of the certificates that this process uses at `address`; empty for one without TLS."""
    folder = os.environ.get(TLS_DIR_VARIABLE, "")
    return os.path.abspath(folder) if folder and address.startswith(f"{TlsTransport.scheme}://") else ""


class TlsTransport(TcpTransport):
    """`tls://host:port`, for hosts that other people's bytes pass between."""

    scheme = "tls"

    def check(self, address: str) -> None:
        super().check(address)
        self._context(dialing=False)

    async def listen(self, address: str, accept: Accept) -> "TlsListener":
        host, port = self._host_port(address)
        context = self._context(dialing=False)
        doors: list[socket.socket] = []
        try:
            for family, where in await _resolved(host, port):
                doors.append(socket.create_server((where[0], port, *where[2:]), family=family, backlog=BACKLOG))
                port = doors[0].getsockname()[1]
        except OSError as error:
            for door in doors:
                door.close()
            raise UsageError(f"cannot listen at {address}: {error.strerror or error}") from error
        return TlsListener(self._address(host, port), doors, context, accept)

    async def dial(self, address: str) -> StreamConnection:
        return await self._reach(address, ssl=self._context(dialing=True), ssl_handshake_timeout=HANDSHAKE_S)

    def _context(self, *, dialing: bool) -> ssl.SSLContext:
        folder = os.environ.get(TLS_DIR_VARIABLE, "")
        if not folder:
            raise UsageError(f"tls:// needs certificates: --tls-dir, or {TLS_DIR_VARIABLE}, names their folder")
        return credentials(Path(folder), dialing=dialing)


class TlsListener:
    """Takes callers, so many at a time: an event loop's own server begins as many handshakes as there are callers."""

    def __init__(self, address: str, doors: list[socket.socket], context: ssl.SSLContext, accept: Accept) -> None:
        self.address = address
        self._doors = doors
        self._context = context
        self._accept = accept
        self._under_way: set[asyncio.Task[None]] = set()
        self._turns_away = False
        loop = asyncio.get_running_loop()
        self._taking = [loop.create_task(self._take_callers(door), name=f"{address}: callers") for door in doors]

    async def close(self) -> None:
        """Accept no more. Connections that exist stay."""
        ending = [*self._taking, *self._under_way]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        for door in self._doors:
            door.close()

    async def _take_callers(self, door: socket.socket) -> None:
        door.setblocking(False)
        loop = asyncio.get_running_loop()
        while True:
            try:
                caller, peer = await loop.sock_accept(door)
            except OSError as error:
                log.get().warning("cannot take a caller", reason=error.strerror)
                await asyncio.sleep(PAUSE_S)  # most likely there are no file descriptors left
                continue
            if len(self._under_way) < MAX_HANDSHAKES:
                self._turns_away = False
                task = loop.create_task(self._shake_hands(caller), name=f"{self.address}: handshake")
                self._under_way.add(task)
                task.add_done_callback(partial(self._over, caller))
                continue
            caller.close()
            if not self._turns_away:  # one line for all of a flood
                self._turns_away = True
                log.get().warning("too many handshakes of TLS are under way", peer=f"{peer[0]}:{peer[1]}")

    def _over(self, caller: socket.socket, task: "asyncio.Task[None]") -> None:
        self._under_way.discard(task)
        if task.cancelled():
            caller.close()  # it may not have begun

    async def _shake_hands(self, caller: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        new = partial(StreamConnection, self._accept)
        with contextlib.suppress(OSError):  # it is no member, or gone; TLS has told it so
            await loop.connect_accepted_socket(new, caller, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_S)


async def _resolved(host: str, port: int) -> list[tuple[int, tuple[Any, ...]]]:
    """Return the family and the address of each that `host` stands for."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((family, where) for family, _, _, _, where in found))


@cache
def credentials(folder: Path, *, dialing: bool) -> ssl.SSLContext:
    """Return what one side of a connection shows and demands, from the files in `folder`.

    Raises:
        UsageError: a file is missing, no certificate or key, or the key is for others to read.
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
        context.load_cert_chain(cert, key, password=_no_password)
    except ssl.SSLError as error:
        raise UsageError(f"cannot use the certificates in {str(folder)!r}: {error.reason or error}") from None
    except OSError as error:
        missing = next((str(path) for path in (ca, cert, key) if not path.is_file()), str(folder))
        raise UsageError(f"cannot read {missing!r}: {error.strerror}; tls:// needs {', '.join(FILES)}") from None
    return context


def _no_password() -> str:
    return ""  # else OpenSSL asks for one at the terminal
