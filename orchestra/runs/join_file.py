"""The door of a run: a file in its directory that says where, and with which secret, others may join while it goes on.

It is readable by its owner alone, and gone when the run is over. A run in one process has nothing to join; its door
says so.
"""

import contextlib
import json
import os
import platform
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from orchestra.errors import UsageError
from orchestra.runs.run_directory import RunDirectory


@dataclass(frozen=True, slots=True)
class JoinInfo:
    """Where a run can be joined."""

    address: str
    """Where the root listens."""
    secret: bytes
    """What every node of the run knows."""
    pid: int
    """The root's process."""
    tls_dir: str = ""
    """The folder of the run's certificates, if it goes over TLS."""

    def __repr__(self) -> str:
        return f"<Door at {self.address}>"


@contextlib.contextmanager
def opened(run: RunDirectory, door: JoinInfo | None) -> Iterator[None]:
    """While the block runs, have `door` in the run's directory; None for a run that cannot be joined."""
    written: dict[str, object] = {"pid": os.getpid()}
    if door is not None:
        written |= {"address": door.address, "secret": door.secret.hex(), "tls_dir": door.tls_dir}
    # Whole or not at all, and nobody else's from the first byte on.
    temporary = run.door.with_name(f".{run.door.name}.{secrets.token_hex(4)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(written, file)
    os.replace(temporary, run.door)
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):  # somebody removed the run's folder meanwhile
            os.unlink(run.door)


def find(run: RunDirectory) -> JoinInfo:
    """Return the door of a run that goes on.

    Raises:
        UsageError: the run is over, or cannot be joined, or its door is not ours to read.
    """
    try:
        written = json.loads(run.door.read_bytes())
    except FileNotFoundError:
        raise UsageError(f"the run in {str(run.path)!r} is over") from None
    except OSError as error:
        raise UsageError(
            f"cannot read {str(run.door)!r}: {error.strerror}; only whoever started a run can look into it"
        ) from None
    except ValueError as error:
        raise UsageError(f"{str(run.door)!r} is not what a run writes: {error}") from None
    match written:
        case {"pid": int(pid), "address": str(address), "secret": str(digits), "tls_dir": str(tls_dir)}:
            _check_alive(run, pid)
            return JoinInfo(address, _bytes(run.door, digits), pid, tls_dir)
        case {"pid": int(pid), **rest} if not rest:
            _check_alive(run, pid)
            raise UsageError(
                f"the run in {str(run.path)!r} is one process, which does not listen, so that it repeats bit for bit; "
                f"`kill -USR1 {pid}` makes it say what its actors do"
            )
        case _:
            raise UsageError(f"{str(run.door)!r} is not what a run writes")


def _check_alive(run: RunDirectory, pid: int) -> None:
    # A folder that several hosts share may tell of a process of another; that one answers, or it does not.
    here = run.config().get("host") in (None, platform.node())
    if here and not psutil.pid_exists(pid):
        raise UsageError(f"the run in {str(run.path)!r} is over: its process, {pid}, was killed")


def _bytes(path: Path, digits: str) -> bytes:
    try:
        return bytes.fromhex(digits)
    except ValueError:
        raise UsageError(f"{str(path)!r} is not what a run writes: its secret is no hexadecimal number") from None
