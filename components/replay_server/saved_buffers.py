"""Saving replay buffers to files while they are used, and the checkpoint of a replay server."""

import asyncio
import json
from collections.abc import Callable
from copy import copy
from pathlib import Path

import numpy as np

from components.checkpoints.array_file import (
    ArrayReader,
    Checkpointed,
    CheckpointError,
    StateArray,
    generator_array,
    prefixed,
)
from components.checkpoints.snapshot import Snapshot
from components.replay_buffers.invalid import InvalidExperience
from components.replay_server.coordinator import Coordinator
from components.replay_server.members import ServerBuffer
from orchestra import log

COUNTS = {"admitted": 0, "inserted_bytes": 0, "writer": -(2**63), "number": -1}
"""Counts of a `ServerBuffer`, each saved as one array, and their smallest values."""


class SavedBuffers(Checkpointed):
    """State of a coordinator at one moment: the buffers it keeps, its limiter's counts and its random numbers.

    Items already drawn for later batches are not saved; they are drawn again.

    Args:
        coordinator: the coordinator.
    """

    state_kind = "SavedBuffers"

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def _state_arrays(self) -> dict[str, StateArray]:
        coordinator, buffers = self._coordinator, self._coordinator.buffers()
        arrays = {
            "clients": StateArray.of(np.frombuffer(json.dumps(list(buffers)).encode(), np.uint8)),
            "rng": generator_array(coordinator.rng),
            "paced": StateArray.of(np.array(coordinator.limiter is not None)),
        }
        for name in COUNTS:
            arrays[name] = StateArray.of(np.array([getattr(it, name) for it in buffers.values()], np.int64))
        for i, it in enumerate(buffers.values()):
            arrays |= prefixed(f"buffers/{i}", it.buffer.state_arrays())
        if coordinator.limiter is not None:
            arrays |= prefixed("limiter", coordinator.limiter.state_arrays())
        return arrays

    def snapshot(self) -> Snapshot:
        """Return the present state, to be written by another thread while the coordinator continues."""
        return Snapshot(self.state_arrays(), [it.buffer for it in self._coordinator.buffers().values()])

    def restore_from(self, reader: ArrayReader) -> None:
        coordinator = self._coordinator
        reader.expect_format()
        reader.expect_value("kind", self.state_kind)
        names = _read_names(reader)
        counts = {name: reader.read(name, np.int64, (len(names),)) for name in COUNTS}
        for name, least in COUNTS.items():
            if (counts[name] < least).any():
                raise CheckpointError(f"{name}: expected numbers of at least {least}, got {counts[name]}")
        buffers = {}
        for i, name in enumerate(names):
            buffer = coordinator.new_buffer()
            try:
                buffer.restore_from(reader.part(f"buffers/{i}"))
            except CheckpointError as error:
                raise CheckpointError(f"{error} (in the buffer of {name!r})") from error
            buffers[name] = ServerBuffer(buffer, **{count: int(array[i]) for count, array in counts.items()})
        rng = reader.read_generator("rng", coordinator.rng)
        paced = bool(reader.read("paced", np.bool_, ()))
        limiter = coordinator.limiter if paced else None
        if limiter is not None:
            copy(limiter).restore_from(reader.part("limiter"))
        # Everything is checked; from here on the coordinator is changed.
        coordinator.rng.bit_generator.state = rng.bit_generator.state
        coordinator.replace_buffers(buffers, counted=limiter is not None)
        if limiter is not None:
            limiter.restore_from(reader.part("limiter"))


def _read_names(reader: ArrayReader) -> list[str]:
    written = reader.read("clients", np.uint8, (reader.length("clients"),)).tobytes()
    try:
        names = json.loads(written)
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise CheckpointError(f"clients: expected a list of names, each once, got {written!r}")
    return names


class SnapshotWriter:
    """Writes snapshots in a thread, one after the other, while the event loop continues."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._writing: asyncio.Task[None] | None = None

    async def write(self, take: Callable[[], Snapshot], path: str | Path) -> None:
        """Call `take` after earlier writes, and write the snapshot. Cancelling the call does not stop the writing.

        Raises:
            OSError: it cannot be written; the previous file stays.
        """
        async with self._turn:
            await self.written()  # two writers would write into the same partial file
            self._writing = asyncio.get_running_loop().create_task(asyncio.to_thread(take().write, path))
            await asyncio.shield(self._writing)

    async def written(self) -> None:
        """Wait until the snapshot that is being written, if any, is written."""
        if self._writing is not None:
            await asyncio.wait([self._writing])  # unlike `gather`, does not cancel the write when cancelled


class BufferSaver:
    """Saves the buffers that a coordinator keeps: on demand, at intervals, and when its server closes.

    Args:
        coordinator: the coordinator.
        path: the file; None saves on demand only.
        every: seconds between two saves; None saves on demand and at the end only.

    Raises:
        ValueError: the arguments do not fit together, or `every` is out of its range.
    """

    def __init__(self, coordinator: Coordinator, path: str | Path | None, every: float | None) -> None:
        self._kept_here = coordinator.layout.kept_by == "server"
        if path is not None and not self._kept_here:
            raise ValueError(
                "save_path: expected none, since clients keep their buffers; use ReplayClient.save for these"
            )
        if every is not None and not (0 < every < np.inf):
            raise ValueError(f"save_every: expected a finite number of seconds above 0, got {every}")
        if every is not None and path is None:
            raise ValueError(f"save_path: expected a file to save to every {every} s, got none")
        self._buffers, self._writer = SavedBuffers(coordinator), SnapshotWriter()
        self._path, self._every = None if path is None else Path(path), every
        self.saved_times = self.failed_saves = 0
        self.unsaved: OSError | None = None
        """Error of the last save, at the end; None if it succeeded."""

    async def save(self, path: str | Path | None = None) -> None:
        """Write the present buffers, while the coordinator continues.

        Raises:
            InvalidExperience: clients keep their buffers.
            ValueError: no path was given, here or to the constructor.
            OSError: they cannot be written; the previous file stays.
        """
        path = self._check(path, "save")
        await self._writer.write(self._buffers.snapshot, path)
        self.saved_times += 1

    async def load(self, path: str | Path | None = None) -> None:
        """Restore saved buffers.

        Raises:
            InvalidExperience: clients keep their buffers.
            ValueError: no path was given, here or to the constructor.
            CheckpointError, OSError: as for `Checkpointed.load`.
        """
        self._buffers.load(self._check(path, "load"))

    def _check(self, path: str | Path | None, what: str) -> Path:
        chosen = self._path if path is None else Path(path)
        if chosen is None:
            raise ValueError("path: expected one, since there is no save_path, got none")
        if not self._kept_here:
            raise InvalidExperience(f"kept_by: expected server, to {what} buffers here; clients keep theirs")
        return chosen

    def load_if_saved(self) -> None:
        """Restore the buffers of an earlier server, if there is such a file.

        Raises:
            CheckpointError, OSError: as for `Checkpointed.load`.
        """
        if self._path is not None and self._path.exists():
            self._buffers.load(self._path)

    async def run(self) -> None:
        """Save at intervals, until cancelled. Failures are logged and counted."""
        while True:
            await (asyncio.get_running_loop().create_future() if self._every is None else asyncio.sleep(self._every))
            try:
                await self.save()
            except OSError as error:  # a full disk may have space again later
                self.failed_saves += 1
                log.get(actor="replay").warning(
                    "the replay buffers could not be saved", path=str(self._path), reason=str(error)
                )

    async def save_last(self) -> None:
        """Save for the last time. A failure is kept in `unsaved`."""
        await self._writer.written()
        if self._path is not None:
            try:
                await self.save()
            except OSError as error:
                self.unsaved = error
