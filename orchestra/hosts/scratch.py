"""The private folders of an agent on its host, and the code that the agents of a user share there.

    <scratch>/orchestra-<uid>/               mode 0700
        <run>-<slot>/                        what one agent and its nodes write; gone with the agent
            owner.json                       which process that is
            run/                             the counterpart of the run directory
        code/<digest>/                       an unpacked bundle, one of the newest five
    <scratch or /tmp>/o<uid>-<8 digits>/     the agent's sockets: a path of a unix socket has at most 107 bytes

An agent that was killed removes nothing. The next agent of the user on this host does.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import socket
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Self

from orchestra.errors import CannotWrite, UsageError
from orchestra.hosts.bundle import MANIFEST, Bundle, UnpackedCode

VARIABLES = ("SLURM_TMPDIR", "TMPDIR")
"""Environment variables that name the scratch folder, where `--scratch` does not."""
KEPT_BUNDLES = 5
RUN_FOLDERS = ("checkpoints", "logs", "state", "tensorboard", "traces")
"""The folders of a run directory that actors write into."""
SOCKET_BYTES = 100
"""Bytes of the path of a socket."""
MARGIN_BYTES = 2 << 20
"""Space that is left for logs once the code is unpacked."""
_OWNER = "owner.json"
_CODE = "code"
_NEVER = 0.0


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that a folder belongs to."""

    pid: int
    started: int
    """Its start, in clock ticks since boot: another process of this id started at another time."""
    boot_id: str
    """Changes when the machine starts."""
    pid_namespace: int
    """Process ids of two containers do not compare."""
    machine: str

    @classmethod
    def me(cls) -> Self:
        """Return this process."""
        return cls(
            os.getpid(),
            _start_of(os.getpid()) or 0,
            Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            os.stat("/proc/self/ns/pid").st_ino,
            socket.gethostname(),
        )

    def is_dead(self) -> bool:
        """Return whether that process has certainly ended. Processes of other machines and containers may live."""
        me = Owner.me()
        if self.machine != me.machine:
            return False
        if self.boot_id != me.boot_id:
            return True
        return self.pid_namespace == me.pid_namespace and _start_of(self.pid) != self.started


class Scratch:
    """The folders of one agent, from `claim` to `close`.

    Attributes:
        folder: what the agent and its nodes write.
        run: the counterpart of the run directory, with its folders.
        sockets: the folder of the agent's sockets.
        home: the folder of this user's agents.
    """

    def __init__(self, home: Path, folder: Path, sockets: Path) -> None:
        self.home, self.folder, self.run, self.sockets = home, folder, folder / "run", sockets
        self._code_folder = home / _CODE
        self._locks: dict[str, IO[str]] = {}
        """Open files by the digest of the code that this agent uses."""

    @classmethod
    def claim(cls, run: str, slot: int, base: Path | None = None) -> Self:
        """Make the folders of the agent of `slot`, and remove those of this user's dead agents.

        Args:
            run: the run's name.
            slot: the agent's slot.
            base: the scratch folder; by default the one that the environment names, else `/tmp`.

        Raises:
            CannotWrite: a folder cannot be made.
            UsageError: another user has made it.
        """
        base = scratch_folder() if base is None else base.absolute()
        home = base / f"orchestra-{os.getuid()}"
        try:
            _make_private(home)
            _make_private(home / _CODE)
            _remove_dead(home)
            folder = _made(home, f"{run.replace('/', '-')}-{slot}")
            for name in RUN_FOLDERS:
                (folder / "run" / name).mkdir(parents=True)
            sockets = _socket_folder(base, folder)
        except OSError as error:
            raise CannotWrite(f"cannot make a folder in {str(base)!r}: {error.strerror or error}") from error
        return cls(home, folder, sockets)

    def socket_address(self, node: str) -> str:
        """Return the address of the unix socket of `node`, whose path is short enough for the system."""
        path = self.sockets / node
        if len(os.fsencode(path)) > SOCKET_BYTES:
            path = self.sockets / hashlib.sha256(node.encode()).hexdigest()[:12]
        return f"unix://{path}"

    def code(self, bundle: Bundle) -> UnpackedCode:
        """Return the unpacked bundle, which stays there until `close`.

        Raises:
            CannotWrite: there is no room for it.
        """
        if (found := self.known_code(bundle.digest)) is not None:
            return found
        folder = self._code_folder / bundle.digest
        check_room(self._code_folder, bundle.nbytes)
        self._hold(bundle.digest)
        found = bundle.unpack(folder, self.folder)
        self._evict()
        return found

    def known_code(self, digest: str) -> UnpackedCode | None:
        """Return the unpacked bundle of this digest if this host has it; then it stays there until `close`."""
        folder = self._code_folder / _checked_digest(digest)
        self._hold(digest)
        if not (folder / MANIFEST).exists():
            return None
        os.utime(folder)  # it is used now
        return UnpackedCode.open(folder)

    def close(self) -> None:
        """Remove the folders of this agent."""
        for file in self._locks.values():
            file.close()
        self._locks.clear()
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self.sockets, ignore_errors=True)

    def _hold(self, digest: str) -> None:
        """Keep other agents from removing the code of this digest until `close`."""
        if digest not in self._locks:
            self._locks[digest] = _locked(self._code_folder / f"{digest}.lock", fcntl.LOCK_SH)

    def _evict(self) -> None:
        """Remove the code that was used least recently, beyond the newest five and what agents run from."""
        folders = [path for path in self._code_folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
        for folder in sorted(folders, key=_last_used, reverse=True)[KEPT_BUNDLES:]:
            path = folder.with_name(f"{folder.name}.lock")
            with contextlib.suppress(OSError), _locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB):
                doomed = self.folder / f"{folder.name}.old"
                folder.rename(doomed)  # so that no process finds a part of it
                shutil.rmtree(doomed, ignore_errors=True)
                path.unlink(missing_ok=True)


def scratch_folder() -> Path:
    """Return the folder that the environment names for temporary files of jobs, else `/tmp`."""
    named = next((os.environ[name] for name in VARIABLES if os.environ.get(name)), "/tmp")  # noqa: S108 (what is made in it is private)
    return Path(named).absolute()


def check_room(folder: Path, nbytes: int) -> None:
    """Check that the disk of `folder` has room for `nbytes` and some logs.

    Raises:
        CannotWrite: it has not. The text says how much it needs, and how much there is.
    """
    disk = os.statvfs(folder)
    needed, free = nbytes + MARGIN_BYTES, disk.f_bavail * disk.f_frsize
    if free < needed:
        raise CannotWrite(f"needs {-(-needed // 1_000_000)} MB in {str(folder)!r}, has {free // 1_000_000}")


def _make_private(folder: Path) -> None:
    """Make a folder of this user alone, or check that it is one: in `/tmp` another user could have made it.

    Raises:
        UsageError: it is another user's, or a link.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise UsageError(f"{str(folder)!r} is not a folder of this user; remove it, or name another place by --scratch")
    folder.chmod(0o700)


def _made(home: Path, name: str) -> Path:
    """Make a folder that has its owner from its first moment on, so that no agent takes it for a dead agent's."""
    partial = home / f".{name}.{os.getpid()}-{secrets.token_hex(4)}"
    partial.mkdir(mode=0o700)
    (partial / _OWNER).write_text(json.dumps(asdict(Owner.me())))
    count = 1
    while True:
        folder = home / (name if count == 1 else f"{name}.{count}")
        try:
            partial.rename(folder)
        except OSError:
            if not folder.exists():
                raise
            count += 1  # an older agent of this slot has not ended yet
        else:
            return folder


def _socket_folder(base: Path, folder: Path) -> Path:
    """Make the folder of an agent's sockets. Its name follows from that of `folder`, whose owner it shares."""
    sockets = _sockets_of(folder)
    if len(os.fsencode(sockets)) > SOCKET_BYTES // 2:
        sockets = Path("/tmp") / sockets.name  # noqa: S108 (as below)
    _make_private(sockets)
    return sockets


def _sockets_of(folder: Path) -> Path:
    digits = hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]
    return folder.parents[1] / f"o{os.getuid()}-{digits}"


def _remove_dead(home: Path) -> None:
    """Remove what this user's dead agents have left."""
    for path in home.glob(f"*/{_OWNER}"):
        try:
            owner = Owner(**json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError):
            continue  # its agent is removing it at this moment
        if owner.is_dead():
            sockets = _sockets_of(path.parent)
            for folder in (sockets, Path("/tmp") / sockets.name, path.parent):  # noqa: S108 (only folders of this user go)
                if folder.exists() and folder.lstat().st_uid == os.getuid():
                    shutil.rmtree(folder, ignore_errors=True)


def _start_of(pid: int) -> int | None:
    """Return the start of a process in clock ticks since boot; None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[19])  # a process name may hold anything


def _last_used(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:
        return _NEVER  # another agent is removing it


def _checked_digest(digest: str) -> str:
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise UsageError(f"{digest[:80]!r} is no digest of a run's code")
    return digest


def _locked(path: Path, operation: int) -> IO[str]:
    """Return the open file at `path`, locked until it is closed.

    Raises:
        BlockingIOError: another process holds the lock, and `operation` is not to wait.
    """
    while True:
        file = path.open("a")
        try:
            fcntl.flock(file, operation)
            if os.fstat(file.fileno()).st_ino == path.stat().st_ino:
                return file
        except FileNotFoundError:
            pass  # it was removed while this process waited, so a lock on it has no effect
        except BaseException:
            file.close()
            raise
        file.close()
