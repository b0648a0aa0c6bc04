"""The trace of a run: the recordings of its node processes, and the lives of the actors in them."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from orchestra.errors import NotATrace, TraceError, ValuesMissing
from orchestra.message import AnyArray
from orchestra.trace.reader import Place, TraceFile
from orchestra.trace.records import (
    Activation,
    Answer,
    Birth,
    Close,
    Delivery,
    Digest,
    End,
    Gap,
    Handled,
    Header,
    Kind,
    Late,
    Life,
    Record,
)

_OF_AN_ACTOR = (Kind.BIRTH, Kind.DELIVERY, Kind.ANSWER, Kind.HANDLED, Kind.LATE, Kind.END)


@dataclass(frozen=True, slots=True)
class Recording:
    """What one process of a node recorded: its files, oldest first."""

    files: Sequence[TraceFile]

    @property
    def header(self) -> Header:
        """What its first file says of the run."""
        return self.files[0].header

    def records(self) -> Iterator[Record]:
        """Yield all records of actors, and the gaps, in the order in which they were made."""
        for file in self.files:
            for _, record in file.records():
                yield record

    def places(self, actor: str) -> Iterator[tuple[TraceFile, Place]]:
        """Yield where the records of `actor` lie, in order."""
        for file in self.files:
            for place in file.places():
                if place.kind in _OF_AN_ACTOR and file.header_at(place)[0] == actor:
                    yield file, place

    def notes(self) -> list[str]:
        """Say what is not there: what was cut off, damaged, dropped or not closed. Reads all files."""
        said: list[str] = []
        for file in self.files:
            gaps = [record for _, record in file.records() if isinstance(record, Gap)]
            said += [f"{file.path.name}: {damage}" for damage in file.damages]
            said += [f"{file.path.name}: {gap.count:,} records were not written ({gap.reason})" for gap in gaps]
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
        groups: dict[tuple[str, int], dict[str, list[TraceFile]]] = {}
        with ExitStack() as stack:
            for each in trace_files(path):
                file = stack.enter_context(TraceFile(each))
                stem = each.name.rsplit(".", 2)[0]
                groups.setdefault((file.header.node, file.header.generation), {}).setdefault(stem, []).append(file)
            for _, stems in sorted(groups.items()):
                newest = max(stems, key=lambda stem: stems[stem][0].header.wall)
                self.recordings.append(Recording(sorted(stems.pop(newest), key=lambda file: file.header.segment)))
                for file in [file for older in stems.values() for file in older]:
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

    def actors(self) -> list[str]:
        """Return the addresses of all actors whose birth was recorded, sorted."""
        return sorted({life.birth.actor for life in self.lives()})

    def lives(self, actor: str | None = None) -> list[Life]:
        """Return the incarnations that were recorded, of all actors or of one, oldest first for each process."""
        found: list[Life] = []
        for recording in self.recordings:
            open_lives: dict[tuple[str, int], Life] = {}
            for file in recording.files:
                for place in file.places():
                    if place.kind not in (Kind.BIRTH, Kind.END):
                        continue
                    record = file.record_at(place)
                    if isinstance(record, Birth) and actor in (None, record.actor):
                        life = open_lives[record.actor, record.incarnation] = Life(recording.header, record)
                        found.append(life)
                    elif isinstance(record, End) and (record.actor, record.incarnation) in open_lives:
                        open_lives[record.actor, record.incarnation].end = record
        return found

    def life(self, actor: str, *, generation: int | None = None, incarnation: int | None = None) -> Life:
        """Return one incarnation of `actor`: the first that fits.

        Raises:
            TraceError: none was recorded.
        """
        lives = self.lives(actor)
        for life in lives:
            if generation in (None, life.header.generation) and incarnation in (None, life.birth.incarnation):
                return life
        if lives:
            raise TraceError(f"{self.path}: {actor} has no incarnation {incarnation} there; it has {len(lives)} lives")
        known = ", ".join(self.actors()) or "none"
        raise TraceError(f"{self.path}: nothing was recorded of {actor!r}; the recorded actors are {known}")

    def activations(self, life: Life) -> Iterator[Activation]:
        """Yield what came to one incarnation and what it did, activation by activation."""
        recording = next(each for each in self.recordings if each.header.generation == life.header.generation
                         and each.header.node == life.header.node)  # fmt: skip
        current: Activation | None = None
        for file, place in recording.places(life.birth.actor):
            if place.kind in (Kind.BIRTH, Kind.END):
                continue
            record = file.record_at(place)
            assert isinstance(record, Delivery | Answer | Handled | Late)
            if record.incarnation != life.birth.incarnation:
                continue
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
                    current.late.extend(record.effects)
        if current is not None:
            yield current

    def array(self, digest: bytes) -> AnyArray | None:
        """Return the bytes of an array (uint8, read-only) from wherever in the run they were recorded, or None."""
        for recording in self.recordings:
            for file in recording.files:
                if file.knows_blob(digest) and (found := file.blob(digest)) is not None:
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

    def closed(self) -> bool:
        """Whether every process closed its files properly. Reads to their ends."""
        return all(
            any(isinstance(record, Close) for _, record in recording.files[-1].records())
            for recording in self.recordings
        )


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
