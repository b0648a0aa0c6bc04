"""Join tokens: what a host, or a launched process of one, needs to be let into a run.

A token is one JSON document on one line. It is given on standard input or in a file, and nowhere else: command lines,
environments and job scripts are public, or are kept by others. Processes that a host starts get a token of their own on
their standard input, which stays open as long as their starter lives.
"""

import contextlib
import fcntl
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from orchestra.clock import RealClock
from orchestra.errors import AuthenticationFailed, UsageError
from orchestra.wire.addresses import candidates_of
from orchestra.wire.credentials import LEAST_SECRET, Credentials

VALID = timedelta(days=30)
"""The time for which a new token is valid."""
SECRET_BYTES = 32
LONGEST = 1 << 16
"""Bytes of the longest token."""
STDIN = "-"
"""Names standard input where a file could be named."""


class _Tls(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    ca: str
    cert: str
    key: str


class _Document(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    run: Annotated[str, Field(min_length=1)]
    secret: Annotated[str, Field(min_length=2 * LEAST_SECRET, pattern="^([0-9a-f]{2})*$")]
    join: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]
    tls: _Tls | None
    valid_until: Annotated[AwareDatetime, Field(strict=False)]


@dataclass(frozen=True, slots=True)
class JoinToken:
    """The data that a host needs to be let into a run."""

    run: str
    """The name of the run, for people."""
    secret: bytes = field(repr=False)
    """The run's secret, which every process proves to know."""
    join: tuple[str, ...]
    """The addresses of the head, best first."""
    tls: Credentials | None
    """The credentials of the run; None if it goes without TLS."""
    valid_until: datetime

    @classmethod
    def new(
        cls,
        run: str,
        join: tuple[str, ...],
        *,
        tls: Callable[[datetime, datetime], Credentials] | Credentials | None,
        secret: bytes | None = None,
        now: datetime | None = None,
    ) -> Self:
        """Return a new token.

        Args:
            run: the name of the run.
            join: the addresses of the head, best first.
            tls: credentials, or a function of the wall-clock time and the end of the token for them; None for no TLS.
            secret: of the run; a new one by default.
            now: the wall-clock time.
        """
        now = (now or RealClock().now()).replace(microsecond=0)
        until = now + VALID
        return cls(run, secret or os.urandom(SECRET_BYTES), join, tls(now, until) if callable(tls) else tls, until)

    @property
    def address(self) -> str:
        """The addresses of the head as one address to dial."""
        return ",".join(self.join)

    def joining(self, *addresses: str) -> Self:
        """Return the same token for other addresses."""
        return replace(self, join=tuple(each for address in addresses for each in candidates_of(address)))

    def line(self) -> str:
        """Return the token as one line of ASCII, which ends with a line feed.

        Raises:
            UsageError: it is too long.
        """
        tls = None if self.tls is None else _Tls(ca=self.tls.ca, cert=self.tls.cert, key=self.tls.key)
        document = _Document(
            run=self.run, secret=self.secret.hex(), join=list(self.join), tls=tls, valid_until=self.valid_until
        )
        text = document.model_dump_json() + "\n"
        if len(text) > LONGEST:
            raise UsageError(f"a join token has at most {LONGEST >> 10} KiB: the certificates of this run are too long")
        return text

    @classmethod
    def parse(cls, text: str | bytes, *, source: str, now: datetime | None = None) -> Self:
        """Return the token that `text` holds.

        Args:
            text: the JSON document.
            source: where it comes from, for errors.
            now: the wall-clock time.

        Raises:
            UsageError: it is no join token. The text quotes nothing of it.
            AuthenticationFailed: it has expired.
        """
        if not text.strip():
            raise UsageError(f"{source} holds no join token: it is empty; `orchestra token RUN_DIR` prints one")
        try:
            found = _Document.model_validate_json(text)
        except ValidationError as error:
            wrong = error.errors(include_url=False, include_input=False, include_context=False)[0]
            where = ".".join(map(str, wrong["loc"]))
            problem = f"{where}: {wrong['msg']}" if where else "it is no JSON document of a token"
            raise UsageError(f"{source} holds no valid join token: {problem}") from None
        tls = None
        if found.tls is not None:
            tls = Credentials(found.tls.ca, found.tls.cert, found.tls.key).check(f"the join token in {source}")
        if (now or RealClock().now()) > found.valid_until:
            raise AuthenticationFailed(
                f"the join token of {found.run} in {source} expired on {found.valid_until:%Y-%m-%d %H:%M} UTC; "
                "`orchestra token RUN_DIR` prints a new one"
            )
        until = found.valid_until.astimezone(UTC)
        return cls(found.run, bytes.fromhex(found.secret), tuple(found.join), tls, until)

    @classmethod
    def read(cls, source: str) -> Self:
        """Return the token in the file `source`, or on the first line of standard input if it is `-`.

        Of standard input nothing behind the first line is read: it stays open as long as the starter lives.

        Raises:
            UsageError: the file cannot be read, other users may read it, or it holds no token.
            AuthenticationFailed: the token has expired.
        """
        if source == STDIN:
            return cls.parse(_first_line(0), source="standard input")
        return cls.parse(_private(source), source=repr(source))


def token_of_process() -> tuple[JoinToken, int]:
    """Return the token of a launched process, and a file descriptor whose end means that its starter is dead.

    The token is the first line of standard input, and does not expire: it is as new as the process. The descriptor is
    moved away from there, and is not inherited; standard input is empty from then on.

    Raises:
        UsageError: there is no token.
    """
    token = JoinToken.parse(_first_line(0), source="standard input", now=datetime.min.replace(tzinfo=UTC))
    lifeline = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
    with open(os.devnull, "rb") as empty:
        os.dup2(empty.fileno(), 0)
    return token, lifeline


def _first_line(fd: int) -> bytes:
    """Return the first line that can be read from `fd`, and read nothing behind it."""
    line = bytearray()
    with contextlib.suppress(OSError):  # closed: there is no token
        while len(line) <= LONGEST and (byte := os.read(fd, 1)) and byte != b"\n":
            line += byte
    return bytes(line)


def _private(path: str) -> bytes:
    """Return the contents of a file that no other user can read.

    A group may read the file of another owner: that is how Kubernetes lets a process read a mounted secret.
    """
    try:
        with open(path, "rb") as file:
            found: Any = os.fstat(file.fileno())
            mode = stat.S_IMODE(found.st_mode)
            own = found.st_uid == os.geteuid() != 0
            allowed = 0o700 if own or found.st_gid not in {os.getegid(), *os.getgroups()} else 0o740
            if mode & ~allowed:
                raise UsageError(f"{path!r} has mode {mode:04o}: others could read the join token; chmod it to 0600")
            return file.read(LONGEST + 1)
    except OSError as error:
        raise UsageError(f"cannot read the join token in {path!r}: {error.strerror}") from None
