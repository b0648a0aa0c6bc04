"""The trace of a run: the recordings of its node processes, and the lives of the actors in them."""

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from orchestra.actors.message import AnyArray
from orchestra.errors import NotATrace, TraceError, ValuesMissing
from orchestra.trace.format.records import (
    Activation,
    ActorSnapshot,
    Answer,
    Birth,
    Delivery,
    Digest,
    End,
    Gap,
    Handled,
    Header,
    Incarnation,
    Kind,
    Late,
    Record,
)
from orchestra.trace.reading.index import TraceIndex
from orchestra.trace.reading.reader import TraceFile


class Recording:
    """What one process of a node recorded: its files, oldest first."""

    def __init__(self, files: Sequence[TraceFile]) -> None:
        self.files = files
        self._indexes: list[TraceIndex] = []

    @property
    def header(self) -> Header:
        """What its first file says of the run."""
        return self.files[0].header

    @property
    def indexes(self) -> list[TraceIndex]:
        """The index of each file; built at the first use."""
        if not self._indexes:
            self._indexes = [TraceIndex.of(file) for file in self.files]
        return self._indexes

    @property
    def closed(self) -> bool:
        """Whether its process closed it properly."""
        return all(index.file.closed for index in self.indexes)

    def records(self) -> Iterator[Record]:
        """Yield all records of actors, and the gaps, in the order in which they were made."""
        for file in self.files:
            for _, record in file.records():
                yield record

    def records_of(self, actor: str, *kinds: Kind, resolve: bool = True) -> Iterator[Record]:
        """Yield the records of an actor of the given kinds, or of any kind, in order.

        Args:
            actor: its address.
            kinds: the kinds; none for all.
            resolve: whether to read large arrays; a record has `Digest`s in their place otherwise.
        """
        for index in self.indexes:
            for row in index.rows_of(actor, *kinds):
                yield index.record(int(row), resolve=resolve)

    def notes(self) -> list[str]:
        """Say what is not there: what was cut off, damaged, dropped or not closed."""
        said: list[str] = []
        for index in self.indexes:
            file = index.file
            gaps = [file.record_at(file.location_at(offset)) for offset in index.gaps]
            said += [f"{file.path.name}: {damage}" for damage in file.damages]
            said += [
                f"{file.path.name}: {gap.count:,} records were not written ({gap.reason})"
                for gap in gaps
                if isinstance(gap, Gap)
            ]
            if not file.closed:
                said.append(f"{file.path.name}: not closed; its process was killed, or still writes to it")
        return said


class RunTrace:
    """All recordings of a run, opened for reading.

    Args:
        path: a run directory, a folder of trace files, or one trace file. Of a process with several flight records the
            newest counts; name an older one's file to see it.

    Raises:
        NotATrace: there is no trace.
        TraceVersion: one is of another version of the format.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recordings: list[Recording] = []
        self.older: list[Path] = []
        """Flight records of processes that wrote a newer one."""
        groups: dict[tuple[str, int], dict[str, list[TraceFile]]] = {}
        with ExitStack() as stack:
            for each in trace_files(path):
                file = stack.enter_context(TraceFile(each))
                stem = each.name.rsplit(".", 2)[0]
                groups.setdefault((file.header.node, file.header.generation), {}).setdefault(stem, []).append(file)
            for _, stems in sorted(groups.items()):
                newest = max(stems, key=_flight_number)
                self.recordings.append(Recording(sorted(stems.pop(newest), key=lambda file: file.header.segment)))
                for file in [file for older in stems.values() for file in older]:
                    self.older.append(file.path)
                    file.close()
            stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<RunTrace {self.path}>"

    def close(self) -> None:
        """Close all files."""
        for recording in self.recordings:
            for file in recording.files:
                file.close()

    @property
    def began(self) -> float:
        """When the first of its processes began, in seconds since 1970, by that process's clock."""
        return min(recording.header.wall for recording in self.recordings)

    def actors(self) -> list[str]:
        """Return the addresses of all actors that were recorded, sorted."""
        found: set[str] = set()
        for recording in self.recordings:
            for index in recording.indexes:
                found |= index.actors()
        return sorted(found)

    def incarnations(self, actor: str | None = None) -> list[Incarnation]:
        """Return the incarnations that were recorded, of all actors or of one, oldest first for each process."""
        found: list[Incarnation] = []
        for recording in self.recordings:
            open_lives: dict[tuple[str, int], Incarnation] = {}
            for index in recording.indexes:
                rows = np.union1d(index.rows(Kind.BIRTH, actor), index.rows(Kind.END, actor))
                for record in map(index.record, rows):
                    if isinstance(record, Birth):
                        life = open_lives[record.actor, record.incarnation] = Incarnation(recording.header, record)
                        found.append(life)
                    elif isinstance(record, End) and (record.actor, record.incarnation) in open_lives:
                        open_lives[record.actor, record.incarnation].end = record
        return found

    def incarnation(self, actor: str, *, generation: int | None = None, incarnation: int | None = None) -> Incarnation:
        """Return one incarnation of `actor`: the first that fits.

        Raises:
            TraceError: none was recorded.
        """
        lives = self.incarnations(actor)
        for life in lives:
            if generation in (None, life.header.generation) and incarnation in (None, life.birth.incarnation):
                return life
        if lives:
            raise TraceError(f"{self.path}: {actor} has no incarnation {incarnation} there; it has {len(lives)} lives")
        known = ", ".join(self.actors()) or "none"
        raise TraceError(f"{self.path}: nothing was recorded of {actor!r}; the recorded actors are {known}")

    def recording(self, life: Incarnation) -> Recording:
        """Return the recording that a life is in."""
        where = (life.header.node, life.header.generation)
        return next(each for each in self.recordings if (each.header.node, each.header.generation) == where)

    def snapshot(self, life: Incarnation) -> ActorSnapshot | None:
        """Return the newest state that was recorded of one incarnation."""
        found = None
        for record in self.recording(life).records_of(life.birth.actor, Kind.SNAPSHOT):
            if isinstance(record, ActorSnapshot) and record.incarnation == life.birth.incarnation:
                found = record
        return found

    def activations(self, life: Incarnation, *, since: int = 0, until: int | None = None) -> Iterator[Activation]:
        """Yield what came to one incarnation and what it did, activation by activation.

        Args:
            life: whose.
            since: the activation to begin with; those before it are not read.
            until: the one before which to stop.
        """
        current: Activation | None = None
        for record in self._records_within(life, since, until):
            if current is None or record.n != current.n:
                if current is not None:
                    yield current
                current = Activation(record.n, "start" if record.n == 0 else "message")
            match record:
                case Delivery():
                    current.delivery = record
                case Answer():
                    current.answers[record.number] = record
                case Handled():
                    current.handled = record
                    current.phase = record.phase
                case Late():
                    (current.early if current.handled is None else current.late).extend(record.effects)
        if current is not None:
            yield current

    def activation(self, life: Incarnation, n: int | None = None) -> Activation | None:
        """Return activation `n` of one incarnation, or its last one; None where that is not recorded."""
        if n is None:
            for index in reversed(self.recording(life).indexes):
                rows = _rows_within(index, life, 0, None)
                if len(rows):
                    n = int(index.entries["n"][rows].max())
                    break
            else:
                return None
        return next(self.activations(life, since=n, until=n + 1), None)

    def _records_within(
        self, life: Incarnation, since: int, until: int | None
    ) -> Iterator[Delivery | Answer | Handled | Late]:
        for index in self.recording(life).indexes:
            for row in _rows_within(index, life, since, until):
                record = index.record(int(row))
                assert isinstance(record, Delivery | Answer | Handled | Late)
                yield record

    def array(self, digest: bytes) -> AnyArray | None:
        """Return the bytes of an array (uint8, read-only) from wherever in the run they were recorded, or None."""
        for recording in self.recordings:
            for index in recording.indexes:
                if (found := index.file.blob(digest)) is not None:
                    return found
        return None

    def resolved(self, value: Any) -> Any:
        """Return `value` with every `Digest` in it replaced by the array, where the run has it.

        Raises:
            ValuesMissing: it was recorded as a digest only.
        """
        match value:
            case Digest():
                found = self.array(value.digest)
                if found is None:
                    raise ValuesMissing(
                        f"{self.path}: the values of an array {value.dtype}{list(value.shape)} were not recorded, "
                        "its digest alone; record with --trace full"
                    )
                return found.view(value.dtype).reshape(value.shape)
            case dict():
                return {key: self.resolved(item) for key, item in value.items()}
            case list() | tuple():
                return type(value)(self.resolved(item) for item in value)
        return value


def trace_files(path: Path) -> list[Path]:
    """Return the trace files of a run directory or folder, or `path` itself if it is a file.

    Raises:
        NotATrace: there is none.
    """
    if not path.exists():
        raise NotATrace(f"there is no run or trace {str(path)!r}")
    if path.is_file():
        return [path]
    found = sorted(path.glob("*.trace")) or sorted((path / "traces").glob("*.trace"))
    if found:
        return found
    if (path / "config.json").exists():
        raise NotATrace(
            f"{str(path)!r} was run without a trace, or nothing failed: record with --trace full, digest, or flight"
        )
    raise NotATrace(f"{str(path)!r} holds no trace: no *.trace in it, nor in its folder traces")


def _rows_within(index: TraceIndex, life: Incarnation, since: int, until: int | None) -> NDArray[np.int64]:
    """The rows of what came to one incarnation and what it did, from one activation on, before another."""
    rows = index.rows_of(life.birth.actor, Kind.DELIVERY, Kind.ANSWER, Kind.HANDLED, Kind.LATE)
    entries = index.entries
    chosen: NDArray[np.bool_] = entries["incarnation"][rows] == life.birth.incarnation
    if since or until is not None:
        numbers = entries["n"][rows]
        chosen &= numbers >= since
        if until is not None:
            chosen &= numbers < until
    found: NDArray[np.int64] = rows[chosen]
    return found


def _flight_number(stem: str) -> int:
    """Which flight record of its process a series of files is. Their times do not say: threads of their own write."""
    found = re.search(r"\.flight-(\d+)$", stem)
    return -1 if found is None else int(found[1])
