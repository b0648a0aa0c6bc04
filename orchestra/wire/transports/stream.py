"""tcp:// and unix:// on asyncio's transports. Payloads are received straight into their final memory."""

import asyncio
import contextlib
import errno
import os
import socket
import ssl
import stat
from functools import partial
from typing import Any, cast

import psutil

from orchestra import log
from orchestra.actors.codec import Buffer
from orchestra.errors import (
    AuthenticationFailed,
    HandshakeError,
    NobodyListens,
    Unreachable,
    UsageError,
    VersionMismatch,
)
from orchestra.wire.addresses import ANY, Place, format_address, parse_address
from orchestra.wire.admission import Admission, source_of
from orchestra.wire.frames import UNPROVEN, Kind, Outbox, frame_bytes
from orchestra.wire.refusals import Refusals
from orchestra.wire.transports.base import Accept, Listener
from orchestra.wire.transports.endpoint import Endpoint

LOCAL_SEND_BYTES = 512 << 10
"""Bytes of the send buffer to a peer on this host. The default is several MiB, which leave the processor's cache before
the peer reads them: large arrays took twice the time."""
LINGER_S = 5.0
"""Seconds that a closed connection waits for a peer that does not read."""
HANDSHAKE_S = 3.0
"""Seconds that a TLS handshake may take. Our own handshake after it has its own limit."""
BACKLOG = 1024
"""Connections that the system queues until they are accepted. It ignores further ones, whose peers repeat their request
after a second."""
FREE_PORTS = 8
"""Ports that the system selects until one is free at all addresses."""
PAUSE_S = 1.0
"""Seconds to wait after an accept has failed."""


class StreamConnection(Endpoint, asyncio.BufferedProtocol):
    """A socket that carries frames."""

    def __init__(self, accept: Accept | None = None) -> None:
        super().__init__("a peer that has not connected")
        self._accept = accept
        self.get_buffer = self._reader.get_buffer  # type: ignore[method-assign]  # saves a call for every read
        self._outbox = Outbox()
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._scheduled = False
        self._closing = self._encrypted = False
        self._lingering: asyncio.TimerHandle | None = None
        self._cause: Exception | None = None

    def send(self, pieces: list[Buffer], *, at_once: bool = False) -> None:
        if self._lost or self._closing:
            return
        if at_once and len(pieces) == 1 and self._transport is not None and not self._outbox.nbytes:
            self._transport.write(pieces[0])
            return
        self._outbox.extend(pieces)
        if at_once or self._outbox.due:
            self._flush()
        elif not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush_in_turn)

    def close(self) -> None:
        if self._transport is not None and not self._closing:
            self._flush()
            self._closing = True
            self._transport.close()
            self._lingering = self._loop.call_later(LINGER_S, self._transport.abort)

    def abort(self, error: Exception | None = None) -> None:
        if self._cause is None:
            self._cause = error
        if isinstance(error, VersionMismatch) and not self._closing:
            # The frame shows the version of this side, so that the other side knows why, too.
            self.send([frame_bytes(Kind.REFUSAL, b"")])
            self.close()
        self._closing = self._deaf = True
        if isinstance(error, VersionMismatch):
            return
        if self._transport is not None:
            self._transport.abort()

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        name: Any = transport.get_extra_info("peername")
        if isinstance(name, tuple):
            self.peer, self.source = f"{name[0]}:{name[1]}", source_of(name[0])
        else:
            self.peer = self.source = "a local process"
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            here: Any = transport.get_extra_info("sockname")
            if name is not None and name[0] == here[0]:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LOCAL_SEND_BYTES)
                self.local = True
        elif sock is not None:
            self.local = True
        if transport.get_extra_info("sslcontext") is not None:
            self.local = False  # encrypted traffic must not bypass the encryption
            self._encrypted = True
        if self._accept is not None:
            self._accept(self)

    def eof_received(self) -> None:
        # No node half-closes a connection. The event loop would first wait for a peer that may never read again.
        if not self._closing:
            self.abort(self._closed_by_other_side(None))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._cause is None and not self._closing and (exc is None or self._encrypted):
            # TLS connections end in many ways: in mid-record, with an alert, or without any notice.
            exc = self._closed_by_other_side(exc)
        if self._lingering is not None:
            self._lingering.cancel()
        self._lose(self._cause or exc)

    def _closed_by_other_side(self, error: Exception | None) -> Exception:
        """Return why the other side has closed the connection, as far as that is known.

        With TLS 1.3 the side that dials learns after its own handshake that its certificate is refused: by an alert, or
        by the end of the stream, at its first read.
        """
        reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
        if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason or "DECRYPT_ERROR" in reason):
            return AuthenticationFailed(f"{self.peer} refuses the certificate of this process: {reason}")
        text = f"closed by the other side{f': {reason}' if reason else ''}"
        if self._encrypted and self.limits is UNPROVEN:
            text += "; over TLS it may have refused the certificate of this process"
        return ConnectionResetError(text)

    def _flush_in_turn(self) -> None:
        self._scheduled = False
        self._flush()

    def _flush(self) -> None:
        if self._lost or self._closing or self._transport is None or not self._outbox:
            return
        pieces = self._outbox.take()
        if len(pieces) == 1:
            self._transport.write(pieces[0])
        else:
            self._transport.writelines(pieces)


class StreamListener:
    """Accepts one connection in a turn of the loop, so that a flood of them leaves the others their turns.

    The event loop's own servers accept all that are queued at once, and begin any number of TLS handshakes.

    Args:
        context: the credentials for TLS; None for plain streams.
        path: the socket file to remove at the end, if there is one.
    """

    def __init__(
        self,
        address: str,
        sockets: list[socket.socket],
        accept: Accept,
        *,
        context: ssl.SSLContext | None = None,
        path: str | None = None,
    ) -> None:
        self.address = address
        self._sockets = sockets
        self._accept = accept
        self._context = context
        self._path = path
        self._beginning: dict[asyncio.Task[None], socket.socket] = {}
        """The connections that are being made, which takes a handshake with TLS."""
        self._admission: Admission[asyncio.Task[None]] = Admission()
        self._refusals = Refusals(log.get())
        loop = asyncio.get_running_loop()
        self._accepting = [loop.create_task(self._accept_from(sock), name=f"{address}: accept") for sock in sockets]

    async def close(self) -> None:
        """Accept no more connections. Existing ones stay open."""
        ending = [*self._accepting, *self._beginning]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        self._refusals.sum_up(asyncio.get_running_loop().time(), final=True)
        for sock in self._sockets:
            sock.close()
        if self._path is not None:
            with contextlib.suppress(FileNotFoundError):  # another process may have removed it
                os.unlink(self._path)

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
            task = loop.create_task(self._begin(client), name=f"{self.address}: begin")
            self._beginning[task] = client
            task.add_done_callback(self._begun)
            dropped = self._admission.add(task, source_of(peer[0]) if isinstance(peer, tuple) else "")
            if dropped is not None:
                with contextlib.suppress(OSError):  # it is gone
                    self._beginning[dropped].shutdown(socket.SHUT_RDWR)  # which ends its handshake at once
            await asyncio.sleep(0)

    def _begun(self, task: "asyncio.Task[None]") -> None:
        client = self._beginning.pop(task)
        self._admission.remove(task)
        if task.cancelled():
            client.close()  # its handshake may not have begun

    async def _begin(self, client: socket.socket) -> None:
        options: dict[str, Any] = {}
        if self._context is not None:
            options = {"ssl": self._context, "ssl_handshake_timeout": HANDSHAKE_S}
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):  # gone before its handshake
            peer = client.getpeername()
            try:
                await loop.connect_accepted_socket(partial(StreamConnection, self._accept), client, **options)
            except OSError as error:
                # Most likely it has other certificates. But a member that finds a faster way hangs up as well.
                hung_up = not isinstance(error, ssl.SSLError) or isinstance(error, ssl.SSLEOFError)
                where = f"{peer[0]}:{peer[1]}"
                said = f"{where} and this node do not agree on TLS: {getattr(error, 'reason', error)}"
                if hung_up:
                    said = f"{where} hung up during the TLS handshake: it has found a faster way, or refuses this run"
                self._refusals.add(loop.time(), source_of(peer[0]), said, expected=hung_up)


class TcpTransport:
    """`tcp://host:port`; port 0 selects a free one."""

    scheme = "tcp"

    def check(self, address: str) -> None:
        parse_address(address)

    async def listen(self, address: str, accept: Accept) -> Listener:
        return await self._listen(address, accept, None)

    async def _listen(self, address: str, accept: Accept, context: ssl.SSLContext | None) -> StreamListener:
        place = parse_address(address)
        loop = asyncio.get_running_loop()
        sockets: list[socket.socket] = []
        # A port that is free for IPv4 may be taken for IPv6.
        ports = list(range(place.first, place.last + 1)) if place.last else [0] * FREE_PORTS
        for attempts, port in enumerate(ports, 1):
            try:
                sockets = await self._bound(loop, place.host, port)
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE or attempts == len(ports):
                    raise UsageError(f"cannot listen at {address}: {_why_not(error, place)}") from error
        port = sockets[0].getsockname()[1]
        return StreamListener(format_address(self.scheme, place.host, port), sockets, accept, context=context)

    async def _bound(self, loop: asyncio.AbstractEventLoop, host: str, port: int) -> list[socket.socket]:
        """Return sockets that listen at all addresses of `host`, on one port."""
        if host == ANY:
            found: list[tuple[int, tuple[Any, ...]]] = [(socket.AF_INET, ("0.0.0.0", 0))]  # noqa: S104 (asked for)
            if socket.has_ipv6:
                found.append((socket.AF_INET6, ("::", 0, 0, 0)))
        else:
            infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            found = list(dict.fromkeys((family, where) for family, _, _, _, where in infos))
        sockets: list[socket.socket] = []
        try:
            for family, where in found:
                try:
                    sock = socket.create_server((where[0], port, *where[2:]), family=family, backlog=BACKLOG)
                except OSError as error:
                    if host == ANY and sockets and error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                        continue  # this host has no IPv6
                    raise
                sockets.append(sock)
                port = sockets[0].getsockname()[1]
        except OSError:
            for sock in sockets:
                sock.close()
            raise
        return sockets

    async def clear(self, address: str) -> None:
        """Do nothing: a dead process leaves no port behind."""

    async def dial(self, address: str) -> StreamConnection:
        return await self._reach(address)

    async def _reach(self, address: str, **options: Any) -> StreamConnection:
        """Connect with further `options` of `loop.create_connection`."""
        _, host, port, last = parse_address(address)
        if port != last or host == ANY:
            raise UsageError(f"cannot dial {address}: it is an address to listen at")
        try:
            _, connection = await asyncio.get_running_loop().create_connection(StreamConnection, host, port, **options)
        except ssl.SSLCertVerificationError as error:
            reason = error.verify_message or error.reason
            raise AuthenticationFailed(f"{address} does not show a certificate of this run: {reason}") from error
        except ssl.SSLError as error:
            raise HandshakeError(f"{address} does not show a certificate of this run: {error.reason}") from error
        except OSError as error:
            raise _failure(address, error) from error
        return connection


class UnixTransport:
    """`unix:///path/to/socket`. The socket file of a dead process is replaced, that of a live one is not."""

    def check(self, address: str) -> None:
        folder = os.path.dirname(_socket_path(address))
        if not os.path.isdir(folder):
            raise UsageError(f"cannot listen at {address}: there is no folder {folder!r}")

    async def listen(self, address: str, accept: Accept) -> Listener:
        path = _socket_path(address)
        await self.clear(address)
        sock = socket.socket(socket.AF_UNIX)
        # The file is private from the first moment, not only after a `chmod`. A file that another thread creates in
        # that moment gets stricter permissions than it should, which is harmless.
        usual = os.umask(0o177)
        try:
            sock.bind(path)
        except OSError as error:
            sock.close()
            raise UsageError(f"cannot listen at {address}: {error.strerror or error}") from error
        finally:
            os.umask(usual)
        sock.listen(BACKLOG)
        return StreamListener(address, [sock], accept, path=path)

    async def clear(self, address: str) -> None:
        path = _socket_path(address)
        try:
            if not stat.S_ISSOCK(os.stat(path).st_mode):
                raise UsageError(f"cannot listen at {address}: there is a file that is no socket")
            try:
                (await self.dial(address)).abort()
            except NobodyListens:
                os.unlink(path)
                return
        except FileNotFoundError:
            return  # also where another process has removed it meanwhile
        except Unreachable as error:
            # A process that is too busy to answer, or another user's, may be alive.
            raise UsageError(f"cannot listen at {address}: another process seems to; {error}") from None
        except OSError as error:
            raise UsageError(f"cannot listen at {address}: {error.strerror}") from error
        raise UsageError(f"cannot listen at {address}: another process does")

    async def dial(self, address: str) -> StreamConnection:
        path = _socket_path(address)
        try:
            _, connection = await asyncio.get_running_loop().create_unix_connection(StreamConnection, path)
        except OSError as error:
            raise _failure(address, error) from error
        return connection


def _why_not(error: OSError, place: Place) -> str:
    """Return why nothing can listen at a place."""
    if error.errno != errno.EADDRINUSE:
        return error.strerror or str(error)
    if place.first != place.last:
        return f"all ports from {place.first} to {place.last} are taken"
    with contextlib.suppress(psutil.Error):  # not every system shows the sockets of others
        for taken in psutil.net_connections("tcp"):
            if taken.status == psutil.CONN_LISTEN and taken.laddr.port == place.first and taken.pid:
                return f"port {place.first} is taken (pid {taken.pid})"
    return f"port {place.first} is taken by a process of another user"


def _failure(address: str, error: OSError) -> Unreachable:
    # Only a dead process refuses: the system accepts connections on behalf of a live one.
    kind = NobodyListens if isinstance(error, ConnectionRefusedError | FileNotFoundError) else Unreachable
    return kind(f"no process answers at {address}: {error.strerror or error}")


def _socket_path(address: str) -> str:
    path = address.removeprefix("unix://")
    # The system rejects zeros and lone surrogates, which are not printable.
    if not path.startswith("/") or not path.isprintable() or len(path.encode()) > 100:
        raise UsageError(f"cannot use the address {address!r}: write unix:///PATH, absolute and at most 100 bytes long")
    return path
