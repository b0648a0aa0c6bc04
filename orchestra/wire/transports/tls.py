"""tls:// is TCP with TLS. Certificates of both sides are signed by the run's own authority.

Any certificate of that authority belongs to the run, whatever the host, so names in certificates are not compared. Both
sides still prove that they know the run's secret.
"""

import ssl

from orchestra.errors import UsageError
from orchestra.wire.credentials import TLS_DIR_VARIABLE, Credentials, context, credentials_of_environment
from orchestra.wire.transports.base import Accept, Listener
from orchestra.wire.transports.stream import HANDSHAKE_S, StreamConnection, TcpTransport


class TlsTransport(TcpTransport):
    """`tls://host:port`, for hosts on an untrusted network."""

    scheme = "tls"

    def __init__(self, credentials: Credentials | None = None) -> None:
        """Use `credentials`, by default those in the folder that `ORCHESTRA_TLS_DIR` names."""
        self._credentials = credentials

    def check(self, address: str) -> None:
        super().check(address)
        self._context(dialing=False)

    async def listen(self, address: str, accept: Accept) -> Listener:
        return await self._listen(address, accept, self._context(dialing=False))

    async def dial(self, address: str) -> StreamConnection:
        return await self._reach(address, ssl=self._context(dialing=True), ssl_handshake_timeout=HANDSHAKE_S)

    def _context(self, *, dialing: bool) -> ssl.SSLContext:
        credentials = self._credentials or credentials_of_environment()
        if credentials is None:
            raise UsageError(f"tls:// needs certificates: --tls-dir, or {TLS_DIR_VARIABLE}, names their folder")
        return context(credentials, dialing=dialing)
