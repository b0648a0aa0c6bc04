"""tls:// is TCP with TLS. Certificates of both sides are signed by the run's own authority.

Any certificate of that authority belongs to the run, whatever the host, so names in certificates are not compared. Both
sides still prove that they know the run's secret.
"""

import os
import ssl
import stat
from functools import cache
from pathlib import Path

from orchestra.errors import UsageError
from orchestra.wire.transports.base import Accept, Listener
from orchestra.wire.transports.stream import HANDSHAKE_S, StreamConnection, TcpTransport

TLS_DIR_VARIABLE = "ORCHESTRA_TLS_DIR"
"""Names the folder with `ca.pem`, `cert.pem` and `key.pem`, where no `tls_dir` is given."""
FILES = ("ca.pem", "cert.pem", "key.pem")


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

    async def listen(self, address: str, accept: Accept) -> Listener:
        return await self._listen(address, accept, self._context(dialing=False))

    async def dial(self, address: str) -> StreamConnection:
        return await self._reach(address, ssl=self._context(dialing=True), ssl_handshake_timeout=HANDSHAKE_S)

    def _context(self, *, dialing: bool) -> ssl.SSLContext:
        folder = self._folder or folder_of_environment()
        if folder is None:
            raise UsageError(f"tls:// needs certificates: --tls-dir, or {TLS_DIR_VARIABLE}, names their folder")
        return credentials(folder, dialing=dialing)


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
