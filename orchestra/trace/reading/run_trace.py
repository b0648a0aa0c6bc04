"""The trace of a run: the recordings of its node processes, and the incarnations of the actors in them."""

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Self

from orchestra.actors.axes import AnyArray
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
from orchestra.trace.reading.reader import TraceFile, TraceFolder

_OF_ACTIVATIONS = (Kind.DELIVERY, Kind.ANSWER, Kind.HANDLED, Kind.LATE)
"""The inputs and effects of activations."""


class Recording:
    """The trace of one node process: its files, oldest first."""

    def __init__(self, files: Sequence[TraceFile]) -> None:
        self.files = files

    @property
    def header(self) -> Header:
        """The header of its first file."""
        return self.files[0].header

    @cached_property
    def indexes(self) -> list[TraceIndex]:
        """The index of each file; loaded or built at the first use."""
        return [TraceIndex.of(file) for file in self.files]

    @property
    def closed(self) -> bool:
        """True if its process closed all files."""
        return all(index.file.closed for index in self.indexes)

    def notes(self) -> list[str]:
        """Return what is missing, in words: cut off, damaged, dropped or not closed."""
        notes: list[str] = []
        for index in self.indexes:
            file = index.file
            gaps = [file.record_at(file.location_at(offset)) for offset in index.gaps]
            notes += [f"{file.path.name}: {damage}" for damage in file.damages]
            notes += [
                f"{file.path.name}: {gap.count:,} records were not written ({gap.reason})"
                for gap in gaps
                if isinstance(gap, Gap)
            ]
            if not file.closed:
                notes.append(f"{file.path.name}: not closed; its process was killed, or is still writing")
        return notes


class RunTrace:
    """All recordings of a run, opened for reading.

    Args:
        path: a run directory, a folder of trace files, or one trace file. Of several flight records of one process only
            the newest is opened; pass the file of an older one to read that.

    Raises:
        NotATrace: there is no trace.
        TraceVersion: a file has another format version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recordings: list[Recording] = []
        self.older: list[Path] = []
        """Flight records of processes that wrote a newer one."""
        self.empty: list[Path] = []
        """Files of processes that ended before they wrote anything."""
        groups: dict[tuple[str, int], dict[str, list[TraceFile]]] = {}
        with ExitStack() as stack:
            files = trace_files(path)
            written = [each for each in files if each.stat().st_size > 0] or files  # if all are empty, it says so
            self.empty = [each for each in files if each not in written]
            for each in written:
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
        folder = TraceFolder(self.recordings[0].files[0].path.parent)
        for recording in self.recordings:
            for file in recording.files:
                file.others = folder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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
        """Start of the run's first process, in seconds since 1970 by its own clock."""
        return min(recording.header.wall for recording in self.recordings)

    def elapsed(self, header: Header, time: float) -> float:
        """Return a monotonic time of the process of `header` in seconds since the run began, by the wall clocks."""
        return header.wall + time - header.monotonic - self.began

    def indexes(self) -> Iterator[tuple[Recording, TraceIndex]]:
        """Yield the index of every file, with the recording that it belongs to."""
        for recording in self.recordings:
            for index in recording.indexes:
                yield recording, index

    def actors(self) -> list[str]:
        """Return the addresses of all recorded actors, sorted."""
        return sorted(set().union(*(index.actors() for _, index in self.indexes())))

    def incarnations(self, actor: str | None = None) -> list[Incarnation]:
        """Return the recorded incarnations of all actors or of one, oldest first within each process."""
        found: list[Incarnation] = []
        for recording in self.recordings:
            by_key: dict[tuple[str, int], Incarnation] = {}
            for index in recording.indexes:
                for record in map(index.record, index.rows(Kind.BIRTH, Kind.END, actor=actor)):
                    if isinstance(record, Birth):
                        born = by_key[record.actor, record.incarnation] = Incarnation(recording.header, record)
                        found.append(born)
                    elif isinstance(record, End) and (record.actor, record.incarnation) in by_key:
                        by_key[record.actor, record.incarnation].end = record
        return found

    def incarnation(self, actor: str, *, generation: int | None = None, incarnation: int | None = None) -> Incarnation:
        """Return the first incarnation of `actor` with this generation and this number, where they are given.

        Raises:
            TraceError: there is none.
        """
        found = self.incarnations(actor)
        for each in found:
            if generation in (None, each.header.generation) and incarnation in (None, each.birth.incarnation):
                return each
        if found:
            there = "" if generation is None else " in this process"
            numbers = dict.fromkeys(
                str(each.birth.incarnation) for each in found if generation in (None, each.header.generation)
            )
            listed = ", ".join(numbers) or "none"
            raise TraceError(f"{self.path}: {actor} has no incarnation {incarnation}{there}; recorded: {listed}")
        known = ", ".join(self.actors()) or "none"
        raise TraceError(f"{self.path}: nothing was recorded of {actor!r}; the recorded actors are {known}")

    def recording(self, incarnation: Incarnation) -> Recording:
        """Return the recording of the process in which an incarnation ran."""
        process = (incarnation.header.node, incarnation.header.generation)
        return next(each for each in self.recordings if (each.header.node, each.header.generation) == process)

    def snapshot(self, incarnation: Incarnation) -> ActorSnapshot | None:
        """Return the newest recorded state of an incarnation, or None."""
        snapshots = [each for each in self.records_of(incarnation, Kind.SNAPSHOT) if isinstance(each, ActorSnapshot)]
        return snapshots[-1] if snapshots else None

    def records_of(
        self, incarnation: Incarnation, *kinds: Kind, since: int = 0, until: int | None = None, resolve: bool = True
    ) -> Iterator[Record]:
        """Yield the records of an incarnation of these kinds, in order.

        Args:
            incarnation: one of `incarnations`.
            kinds: of records that belong to an activation; at least one.
            since: the first activation.
            until: the activation before which to stop.
            resolve: whether to read large arrays; a record has `Digest`s in their place otherwise.
        """
        birth = incarnation.birth
        for index in self.recording(incarnation).indexes:
            for row in index.rows(*kinds, actor=birth.actor, incarnation=birth.incarnation, since=since, until=until):
                yield index.record(row, resolve=resolve)

    def activations(
        self, incarnation: Incarnation, *, since: int = 0, until: int | None = None
    ) -> Iterator[Activation]:
        """Yield the activations of an incarnation, in order.

        Args:
            incarnation: one of `incarnations`.
            since: the first activation; earlier ones are not read.
            until: the activation before which to stop.
        """
        records = self.records_of(incarnation, *_OF_ACTIVATIONS, since=since, until=until)
        for n, group in groupby(records, attrgetter("n")):
            made = Activation(n, "start" if n == 0 else "message")
            for record in group:
                match record:
                    case Delivery():
                        made.delivery = record
                    case Answer():
                        made.answers[record.number] = record
                    case Handled():
                        made.handled = record
                        made.phase = record.phase
                    case Late():
                        (made.early if made.handled is None else made.late).extend(record.effects)
            yield made

    def activation(self, incarnation: Incarnation, n: int | None = None) -> Activation | None:
        """Return activation `n` of an incarnation, or its last one; None where that was not recorded."""
        birth = incarnation.birth
        if n is None:
            n = 0
            for index in self.recording(incarnation).indexes:
                rows = index.rows(*_OF_ACTIVATIONS, actor=birth.actor, incarnation=birth.incarnation)
                n = max(n, int(index.entries["n"][rows].max(initial=0)))
        return next(self.activations(incarnation, since=n, until=n + 1), None)

    def array(self, digest: bytes) -> AnyArray | None:
        """Return the bytes of an array (uint8, read-only) from any file of the run, or None."""
        for _, index in self.indexes():
            if (found := index.file.blob(digest)) is not None:
                return found
        return None

    def _reference(self, digest: bytes) -> str:
        """Return the file to which the run's files refer for an array, or an empty text."""
        return next((name for _, index in self.indexes() if (name := index.file.reference(digest))), "")

    def resolved(self, value: Any) -> Any:
        """Return `value` with every `Digest` in it replaced by the array.

        Raises:
            ValuesMissing: the run holds an array's digest only.
        """
        match value:
            case Digest():
                found = self.array(value.digest)
                if found is None and (lost := self._reference(value.digest)):
                    raise ValuesMissing(
                        f"{self.path}: the values of {value} are in {lost}, which is missing or damaged; "
                        "the files in the folder traces of a run belong together"
                    )
                if found is None:
                    raise ValuesMissing(
                        f"{self.path}: the values of {value} were not recorded, only its digest; "
                        "record the run with --trace full"
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
            f"{str(path)!r} holds no trace: it ran with --trace off, or with --trace flight and no actor failed; "
            "record with --trace full or digest"
        )
    raise NotATrace(f"{str(path)!r} holds no trace: there is no *.trace in it, nor in its folder traces")


def _flight_number(stem: str) -> int:
    """The number of a flight record, -1 for other files. Their times may overlap: each is written by a thread."""
    found = re.search(r"\.flight-(\d+)$", stem)
    return -1 if found is None else int(found[1])
