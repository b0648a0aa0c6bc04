"""tls://: tcp with both sides' certificates signed by the run's own authority.

The authority is the run's: whoever holds a certificate of it belongs to the run, whatever host it is on, so names in
certificates are not compared. Both sides still prove that they know the run's secret.
"""

import os
import ssl
import stat
from functools import cache
from pathlib import Path

from orchestra.errors import UsageError
from orchestra.transport.stream import TcpTransport

TLS_DIR_VARIABLE = "ORCHESTRA_TLS_DIR"
"""Names the folder with `ca.pem`, `cert.pem` and `key.pem`; what a run launches inherits it."""
FILES = ("ca.pem", "cert.pem", "key.pem")


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

    def _context(self, *, dialing: bool) -> ssl.SSLContext:
        folder = os.environ.get(TLS_DIR_VARIABLE, "")
        if not folder:
            raise UsageError(f"tls:// needs certificates: --tls-dir, or {TLS_DIR_VARIABLE}, names their folder")
        return credentials(Path(folder), dialing=dialing)


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
