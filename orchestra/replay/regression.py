"""Makes a regression test of a recorded actor: a test file, and a trace of this actor alone."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestra.errors import UsageError
from orchestra.replay.replay import Replay
from orchestra.trace.format.array_records import ARRAY_KINDS, array_record
from orchestra.trace.format.layout import PREFIX, Decoder, preamble
from orchestra.trace.format.records import Incarnation, Kind
from orchestra.trace.reading.reader import RecordLocation, TraceFile
from orchestra.trace.reading.run_trace import RunTrace

_ACTOR_RECORDS = (Kind.BIRTH, Kind.SNAPSHOT, Kind.DELIVERY, Kind.ANSWER, Kind.HANDLED, Kind.LATE, Kind.END)

_TEST = '''"""{actor}, in {what}, behaves as recorded."""

from pathlib import Path

from orchestra import Replay

HERE = Path(__file__).resolve().parent


def test_{name}_behaves_as_recorded() -> None:
    with Replay(
        HERE / "{trace}",
        "{actor}",
{options}    ) as replay:
        assert replay.run() == {count}
'''


def make_test(replay: Replay[Any], target: Path, *, until: int | None = None) -> tuple[Path, int]:
    """Write a test that replays an actor up to the delivery `until`, and the part of the trace that it needs.

    The replay runs first: a test that fails from the start is not written.

    Args:
        replay: a replay that has not begun.
        target: the test's file, `tests/test_trainer.py`; the trace is written beside it, as `test_trainer.trace`.
        until: the delivery before which the test ends.

    Returns:
        The trace's file, and its size in bytes.

    Raises:
        UsageError: the target is not named like a test file, or exists.
        ReplayDiverged: the actor differs from the record.
    """
    trace_path = target.with_suffix(".trace")
    if target.suffix != ".py" or not target.name.startswith("test_"):
        raise UsageError(f"--make-test takes the path of a test file, tests/test_NAME.py, got {str(target)!r}")
    for path in (target, trace_path):
        if path.exists():
            raise UsageError(f"{str(path)!r} exists; remove it, or give another name")
    count = replay.run(until=until)
    target.parent.mkdir(parents=True, exist_ok=True)
    size = write_trimmed(replay.trace, replay.incarnation, trace_path, until=until)
    target.write_text(_text(replay, target, trace_path, count, until))
    return trace_path, size


def write_trimmed(trace: RunTrace, incarnation: Incarnation, path: Path, *, until: int | None = None) -> int:
    """Write the records of one incarnation, and the arrays in them, to a new trace; return its size in bytes.

    If the parent must be replayed to construct the actor, its records are included up to the spawn.

    Args:
        trace: the trace to copy from.
        incarnation: the incarnation to copy.
        path: the new file.
        until: the activation before which to stop.
    """
    ends = {(each.birth.actor, each.birth.incarnation): last for each, last in _needed(trace, incarnation, until)}
    files = trace.recording(incarnation).files
    with path.open("wb") as target:
        target.write(preamble())
        kept: set[bytes] = set()
        for file in files:
            target.writelines(_pieces(file, ends, kept, first=file is files[0]))
        return target.tell()


def _needed(trace: RunTrace, incarnation: Incarnation, until: int | None) -> list[tuple[Incarnation, int | None]]:
    """Return the incarnations whose replay is required, each with the activation before which it stops."""
    birth = incarnation.birth
    if birth.origin != "child" or birth.args is not None:
        return [(incarnation, until)]
    parent = trace.incarnation(
        birth.parent, generation=incarnation.header.generation, incarnation=birth.parent_incarnation
    )
    return [*_needed(trace, parent, birth.parent_n + 1), (incarnation, until)]


def _pieces(
    file: TraceFile, ends: Mapping[tuple[str, int], int | None], kept: set[bytes], *, first: bool
) -> Iterator[bytes]:
    """Yield the records of some incarnations as they stand in a file, each after the types and arrays that it names."""
    passed: set[bytes] = set()
    for place in file.locations():
        if (place.kind is Kind.HEADER and first) or place.kind is Kind.TYPE:
            yield file.bytes_at(place.offset, place.end)
        elif place.kind in ARRAY_KINDS:
            passed.add(file.digest_at(place))
        elif place.kind in _ACTOR_RECORDS and _belongs(file, place, ends):
            digests: list[bytes] = []
            # Collects the digests of the record instead of resolving them.
            Decoder(file.types, digests.append).unpacked(
                file.bytes_at(place.offset + PREFIX.size, place.end), resolve=True
            )
            for digest in dict.fromkeys(digests):
                if digest in passed and digest not in kept and (array := file.blob(digest)) is not None:
                    kept.add(digest)
                    yield from map(bytes, array_record(digest, array.data))
            yield file.bytes_at(place.offset, place.end)


def _belongs(file: TraceFile, place: RecordLocation, ends: Mapping[tuple[str, int], int | None]) -> bool:
    header = file.header_at(place)
    key = (header[0], header[1])
    if key not in ends:
        return False
    if place.kind in (Kind.BIRTH, Kind.END):
        return True
    until = ends[key]
    return until is None or int(header[2]) < until


def _text(replay: Replay[Any], target: Path, trace: Path, count: int, until: int | None) -> str:
    incarnation = replay.incarnation
    options = ["allow_changes=True,  # the experiment's file may change; the actor's behaviour is tested"]
    if incarnation.header.experiment is not None:
        file = replay.options.experiment or Path(incarnation.header.experiment.file)
        relative = os.path.relpath(file.resolve(), target.resolve().parent)
        options.insert(0, f'experiment=(HERE / "{relative}").resolve(),')
    if incarnation.birth.incarnation:
        options.append(f"incarnation={incarnation.birth.incarnation},")
    return _TEST.format(
        actor=replay.address,
        what="all its deliveries" if until is None else f"its deliveries before {until:,}",
        name=re.sub(r"\W+", "_", replay.address).lower(),
        trace=trace.name,
        options="".join(f"        {option}\n" for option in options),
        count=count,
    )
