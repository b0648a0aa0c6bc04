"""`join.json`: the file of a run directory that gives the address and the secret with which observers join the run.

It exists only during the run, and only its owner can read it. For a run in one process, which cannot be joined, it
holds only the process id.
"""

import contextlib
import json
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import psutil

from orchestra.errors import UsageError
from orchestra.hosts.token import JoinToken
from orchestra.runs.run_directory import RunDirectory
from orchestra.runs.whole_files import write_json


@dataclass(frozen=True, slots=True)
class JoinInfo:
    """The data that an observer needs to join a run."""

    address: str
    """The address at which the root listens."""
    secret: bytes = field(repr=False)
    """The run's secret, which every node proves to know."""
    pid: int
    """The process id of the root."""
    tls_dir: str = ""
    """The folder of the run's certificates, if it goes over TLS."""
    token: JoinToken | None = None
    """The token with which another host can join; None for a run on one host."""


@contextlib.contextmanager
def opened(run: RunDirectory, info: JoinInfo | None) -> Iterator[None]:
    """While the block runs, keep `info` in the run's directory; None for a run in one process."""
    written: dict[str, object] = {"pid": os.getpid()}
    if info is not None:
        token = None if info.token is None else json.loads(info.token.line())
        written |= {"address": info.address, "secret": info.secret.hex(), "tls_dir": info.tls_dir, "token": token}
    write_json(run.join, written, mode=0o600)
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):  # the run's folder was removed meanwhile
            os.unlink(run.join)


def find(run: RunDirectory) -> JoinInfo:
    """Return how to join a run.

    Raises:
        UsageError: the run is over or in one process, or its file is damaged or belongs to another user.
    """
    try:
        written = json.loads(run.join.read_bytes())
    except FileNotFoundError:
        raise UsageError(f"the run in {str(run.path)!r} is over{_ending(run)}") from None
    except OSError as error:
        raise UsageError(
            f"cannot read {str(run.join)!r}: {error.strerror}; only the user who started a run can look into it"
        ) from None
    except ValueError as error:
        raise UsageError(f"{str(run.join)!r} is damaged: {error}") from None
    match written:
        case {"pid": int(pid), "address": str(address), "secret": str(digits), "tls_dir": str(tls_dir), "token": token}:
            _check_alive(run, pid)
            source, ever = repr(str(run.join)), datetime.min.replace(tzinfo=UTC)  # for observers a token never expires
            found = None if token is None else JoinToken.parse(json.dumps(token), source=source, now=ever)
            return JoinInfo(address, _bytes(run.join, digits), pid, tls_dir, found)
        case {"pid": int(pid), **rest} if not rest:
            _check_alive(run, pid)
            raise UsageError(
                f"the run in {str(run.path)!r} is one process, which does not listen, so that it repeats bit for bit; "
                f"`kill -USR1 {pid}` makes it print what its actors are doing"
            )
        case _:
            raise UsageError(f"{str(run.join)!r} is damaged")


def _check_alive(run: RunDirectory, pid: int) -> None:
    # On a folder that several hosts share, the process may be one of another host; that shows when it is dialled.
    here = run.config().get("host") in (None, platform.node())
    if here and not psutil.pid_exists(pid):
        resume = "" if run.resume_command is None else f"; continue with: {run.resume_command}"
        raise UsageError(f"the run in {str(run.path)!r} is over: its process, {pid}, was killed{resume}")


def _ending(run: RunDirectory) -> str:
    ending = run.ending()
    if "state" not in ending:
        return ""
    reason = f" ({ending['reason']})" if ending.get("reason") else ""
    resume = f"; continue with: {ending['resume']}" if ending.get("resume") else ""
    return f": {ending['state']}{reason}{resume}"


def _bytes(path: Path, digits: str) -> bytes:
    try:
        return bytes.fromhex(digits)
    except ValueError:
        raise UsageError(f"{str(path)!r} is damaged: its secret is no hexadecimal number") from None
