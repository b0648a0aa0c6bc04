"""Moves files between the hosts of a run, in pieces of 512 KiB: code to a host, traces and saved state to the head.

Each piece is a request, and the next one is sent when it was answered: heartbeats and other messages pass in between,
and a full disk is known at once. A file appears under its name when it is whole.
"""

import asyncio
import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any, ClassVar

from orchestra.actors.actor import Actor, on
from orchestra.actors.message import Message, Request
from orchestra.actors.ref import Ref
from orchestra.actors.system_messages import CollectFilesMsg
from orchestra.errors import AskFailed, CannotWrite, DeliveryError, UsageError

FILES = "files"
"""The name of the `Files` actor of the root, and of each agent. That of the `Collector` is `COLLECTOR`."""
PIECE = 512 << 10
"""Bytes of a piece: half of what the header of a frame may have."""
_PARTIAL = ".incoming"


class FilePieceMsg(Request[str]):
    """Bytes of a file, in order. The answer is the reason why they cannot be written, or an empty text."""

    name: str
    """The file's path below the folder of the recipient."""
    offset: int
    data: bytes
    digest: str = ""
    """SHA-256 of the whole file, with its last piece."""


class SentFilesMsg(Message):
    """Reply to `SendFilesMsg`."""

    names: tuple[str, ...]
    """The files that have arrived, below the folder of the recipient."""
    nbytes: int
    error: str = ""
    """The reason why the other files have not arrived."""


class SendFilesMsg(Request[SentFilesMsg]):
    """Send files to another `Files` actor."""

    patterns: tuple[str, ...]
    """Patterns of the files, below the folder of this actor: `traces/worker-1.*`."""
    to: Ref[FilePieceMsg]
    into: str = ""
    """The folder that they go into, if it is not the one that they lie in."""
    move: bool = False
    """True if a file is removed here once it has arrived."""


class Files(Actor[FilePieceMsg | SendFilesMsg]):
    """Writes files that arrive below its folder, and sends files that lie there.

    Args:
        folder: the run directory, or its counterpart on another host.
        allowed: the folders in it that files may arrive in; all of them by default.
        arrived: called after each piece that was written.
    """

    recorded: ClassVar[bool] = False

    def __init__(self, folder: Path, allowed: Sequence[str] = (), arrived: Callable[[], object] = lambda: None) -> None:
        self._folder = folder
        self._allowed = allowed
        self._arrived = arrived
        self._arriving: dict[str, Arriving] = {}

    @on(FilePieceMsg)
    async def write(self, msg: FilePieceMsg) -> str:
        try:
            path = self._folder / checked_name(msg.name, self._allowed)
            if msg.offset == 0:
                self._close(msg.name)
                self._arriving[msg.name] = Arriving(path)
            arriving = self._arriving.get(msg.name)
            if arriving is None or arriving.nbytes != msg.offset:
                return f"{msg.name}: a piece from byte {msg.offset:,} on does not follow"
            await self.offload(arriving.write, msg.data)
            self._arrived()
            if msg.digest:
                del self._arriving[msg.name]
                await self.offload(arriving.complete, msg.digest)
        except UsageError as error:
            return str(error)
        except OSError as error:
            self._close(msg.name)
            return f"cannot write {msg.name}: {error.strerror or error}"
        return ""

    @on(SendFilesMsg)
    def send(self, msg: SendFilesMsg) -> asyncio.Task[SentFilesMsg]:
        return asyncio.create_task(self._send(msg))  # a slow host delays no other, and files arrive meanwhile

    async def _send(self, msg: SendFilesMsg) -> SentFilesMsg:
        names, nbytes, error = [], 0, ""
        for path in found(self._folder, msg.patterns):
            name = path.relative_to(self._folder).as_posix()
            if msg.into:
                name = f"{msg.into}/{path.name}"
            try:
                nbytes += await send_file(msg.to, path, name, self.offload)
            except (CannotWrite, AskFailed, DeliveryError, OSError) as failed:
                error = f"{name} did not arrive: {failed}"
                break
            names.append(name)
            if msg.move:
                path.unlink(missing_ok=True)
        return SentFilesMsg(names=tuple(names), nbytes=nbytes, error=error)

    async def stopped(self) -> None:
        for name in list(self._arriving):
            self._close(name)

    def _close(self, name: str) -> None:
        if (arriving := self._arriving.pop(name, None)) is not None:
            arriving.abandon()


class Arriving:
    """A file of which some pieces have arrived."""

    def __init__(self, path: Path) -> None:
        self.nbytes = 0
        self._path = path
        self._partial = path.with_name(path.name + _PARTIAL)
        self._digest = hashlib.sha256()
        self._file: IO[bytes] | None = None

    def write(self, data: bytes) -> None:
        """Append a piece."""
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._partial.open("wb")
        self._file.write(data)
        self._digest.update(data)
        self.nbytes += len(data)

    def complete(self, digest: str) -> None:
        """Give the file its name, if it is the one that was sent.

        Raises:
            UsageError: it is not.
            OSError: the disk is full.
        """
        assert self._file is not None
        try:
            if self._digest.hexdigest() != digest:
                raise UsageError(f"{self._path.name}: what has arrived is not what was sent")
            with self._file:
                self._file.flush()
                os.fsync(self._file.fileno())
            self._partial.replace(self._path)
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Remove what has arrived."""
        if self._file is not None:
            self._file.close()
            self._partial.unlink(missing_ok=True)


class Collector(Actor[CollectFilesMsg]):
    """Has the agents of all hosts send files to the head.

    Args:
        files: the `Files` actor of the head.
        agents: returns the node names of the agents that are there.
    """

    recorded: ClassVar[bool] = False

    def __init__(self, files: Ref[FilePieceMsg], agents: Callable[[], Iterable[str]]) -> None:
        self._files = files
        self._agents = agents

    @on(CollectFilesMsg)
    async def collect(self, msg: CollectFilesMsg) -> str:
        request = SendFilesMsg(patterns=(msg.pattern,), to=self._files, into=msg.into, move=True)
        asks = [self._collected(agent, request) for agent in self._agents()]
        return next(filter(None, await asyncio.gather(*asks)), "")

    async def _collected(self, agent: str, request: SendFilesMsg) -> str:
        """Return why the head cannot write the files of an agent, or an empty text."""
        ref: Ref[SendFilesMsg] = Ref(f"{agent}/{FILES}")
        try:
            sent = await ref.ask(request)
        except (AskFailed, DeliveryError) as error:
            # What was there is lost with the host. The run goes on without it.
            self.log.warning("files of a host were not collected", host=agent, files=request.patterns, error=str(error))
            return ""
        return sent.error


async def send_bytes(to: Ref[FilePieceMsg], data: bytes, name: str) -> None:
    """Send a file that is in memory to a `Files` actor.

    Raises:
        CannotWrite: the recipient cannot write it. The text says why.
        AskFailed, DeliveryError: the recipient failed, or is gone.
    """
    digest = hashlib.sha256(data).hexdigest()
    for offset in range(0, max(len(data), 1), PIECE):
        piece = data[offset : offset + PIECE]
        await _send(to, name, offset, piece, digest if offset + len(piece) == len(data) else "")


async def send_file(to: Ref[FilePieceMsg], path: Path, name: str, offload: Callable[..., Any]) -> int:
    """Send a file to a `Files` actor; return its size.

    Args:
        to: the recipient.
        path: the file.
        name: its path below the recipient's folder.
        offload: runs a function in a thread, as `Actor.offload` does.

    Raises:
        CannotWrite: the recipient cannot write it. The text says why.
        AskFailed, DeliveryError: the recipient failed, or is gone.
        OSError: the file cannot be read.
    """
    digest, offset = hashlib.sha256(), 0
    with path.open("rb") as file:
        data = await offload(file.read, PIECE)
        while True:
            following = await offload(file.read, PIECE) if data else b""
            digest.update(data)
            await _send(to, name, offset, data, "" if following else digest.hexdigest())
            offset += len(data)
            if not following:
                return offset
            data = following


async def _send(to: Ref[FilePieceMsg], name: str, offset: int, data: bytes, digest: str) -> None:
    if error := await to.ask(FilePieceMsg(name=name, offset=offset, data=data, digest=digest)):
        raise CannotWrite(error)


async def collect_files(actor: str, pattern: str, into: str) -> str:
    """Have all hosts send matching files to the head; return why it cannot write them, or an empty text.

    An actor of the root calls it for files that actors of other hosts have written below their run directory. On one
    machine they are there already.

    Args:
        actor: the address of the actor that calls this.
        pattern: the files, below the run directory: `state/steps-0000001000.unfinished/*`.
        into: the folder of the head's run directory that they go into.

    Raises:
        DeliveryError: the node stops.
    """
    system: Ref[CollectFilesMsg] = Ref(f"{actor.partition('/')[0]}/system")
    return await system.ask(CollectFilesMsg(pattern=pattern, into=into))


def found(folder: Path, patterns: Iterable[str]) -> list[Path]:
    """Return the whole files below `folder` that match a pattern, sorted."""
    paths = {path for pattern in patterns for path in folder.glob(pattern)}
    return sorted(path for path in paths if path.is_file() and path.suffix != _PARTIAL)


def checked_name(name: str, allowed: Sequence[str] = ()) -> str:
    """Return the name of a file that arrives from another host.

    Raises:
        UsageError: it leads out of the folder, or into a part of it that is not allowed.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts or "\0" in name:
        raise UsageError(f"{name!r} is no name of a file below this folder")
    if allowed and (len(path.parts) < 2 or path.parts[0] not in allowed):
        raise UsageError(f"{name!r} is not allowed; files may arrive in {', '.join(allowed)}")
    return name
