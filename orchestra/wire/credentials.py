"""The credentials of a process: the run's secret, and for TLS a certificate of the run's authority and its key."""

import contextlib
import os
import ssl
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Self

from orchestra.errors import UsageError

TLS_DIR_VARIABLE = "ORCHESTRA_TLS_DIR"
"""Names the folder with `ca.pem`, `cert.pem` and `key.pem`, where no credentials are given."""
FILES = ("ca.pem", "cert.pem", "key.pem")
LEAST_SECRET = 16
"""Bytes of the shortest secret: a shorter one could be found by trying, from one recorded handshake."""


def check_secret(secret: bytes) -> bytes:
    """Return a run's secret.

    Raises:
        UsageError: it is too short.
    """
    if len(secret) < LEAST_SECRET:
        raise UsageError(f"the secret has {len(secret)} bytes; at least {LEAST_SECRET} are required")
    return secret


@dataclass(frozen=True, slots=True)
class Credentials:
    """The certificate and key of a process, and the authority of its peers' certificates. Each field is text in PEM."""

    ca: str = field(repr=False)
    """The certificate of the run's authority."""
    cert: str = field(repr=False)
    """A certificate that the authority has signed."""
    key: str = field(repr=False)
    """The private key of `cert`, not encrypted."""

    @classmethod
    def of_folder(cls, folder: Path) -> Self:
        """Return the credentials in the files of `folder`.

        Raises:
            UsageError: a file is missing or invalid, or other users can read the key.
        """
        ca, cert, key = (folder / name for name in FILES)
        try:
            mode = stat.S_IMODE(key.stat().st_mode)
            if mode & 0o077:
                raise UsageError(f"{str(key)!r} has mode {mode:04o}: others could read the key; chmod it to 0600")
            found = cls(*(path.read_text(encoding="latin-1") for path in (ca, cert, key)))
        except OSError as error:
            missing = next((str(path) for path in (ca, cert, key) if not path.is_file()), str(folder))
            raise UsageError(f"cannot read {missing!r}: {error.strerror}; tls:// needs {', '.join(FILES)}") from None
        return found.check(repr(str(folder)))

    def check(self, source: str) -> Self:
        """Return these credentials.

        Args:
            source: where they come from, for the error.

        Raises:
            UsageError: OpenSSL cannot use them.
        """
        try:
            context(self, dialing=False)
        except ssl.SSLError as error:
            raise UsageError(f"cannot use the certificates in {source}: {error.reason or error}") from None
        except ValueError as error:
            raise UsageError(f"cannot use the certificates in {source}: {error}") from None
        return self


def credentials_of_environment() -> Credentials | None:
    """Return the credentials in the folder that `ORCHESTRA_TLS_DIR` names, if it is set."""
    folder = folder_of_environment()
    return None if folder is None else Credentials.of_folder(folder)


def folder_of_environment() -> Path | None:
    """Return the folder that `ORCHESTRA_TLS_DIR` names, if it is set."""
    folder = os.environ.get(TLS_DIR_VARIABLE, "")
    return Path(folder).absolute() if folder else None


@lru_cache(maxsize=16)
def context(credentials: Credentials, *, dialing: bool) -> ssl.SSLContext:
    """Return the TLS context for one side of a connection.

    Raises:
        ssl.SSLError, ValueError: the credentials cannot be used.
    """
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if dialing else ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.check_hostname = False
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_verify_locations(cadata=credentials.ca.encode("ascii", "ignore").decode())  # without comments' accents
    with _private_file(f"{credentials.cert}\n{credentials.key}\n".encode()) as path:
        made.load_cert_chain(path, password="")  # None would have OpenSSL ask at the terminal
    return made


@contextlib.contextmanager
def _private_file(data: bytes) -> Iterator[str]:
    """Keep `data` in a file that no other user can open, while the block runs: OpenSSL reads keys from files only.

    The file is in memory where the system allows it, else in the folder for temporary files.
    """
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        fd = os.memfd_create("credentials")
        try:
            os.write(fd, data)
            yield f"/proc/self/fd/{fd}"
        finally:
            os.close(fd)
        return
    with tempfile.NamedTemporaryFile() as file:  # of mode 0600
        file.write(data)
        file.flush()
        yield file.name
