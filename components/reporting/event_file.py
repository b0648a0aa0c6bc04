"""Figures as TensorBoard events, written without the thread of `tensorboardX`: a full disk silently ends it."""

import platform
import struct
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from components.reporting.appended_file import AppendedFile

_VERSION = "brain.Event:2"


class EventFile:
    """Writes a new event file in `folder`; each event is written when `write` returns. Call `close` at the end.

    Args:
        folder: folder of the event files that TensorBoard shows together; it is made if it is missing.
        resumes_at: the step from which a run continues; TensorBoard hides later steps of earlier files.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, folder: Path, resumes_at: int | None = None) -> None:
        from tensorboardX.proto import (
            event_pb2,
            summary_pb2,
        )  # which imports torch; readers of metrics need neither

        self._events, self._summaries = event_pb2, summary_pb2
        folder.mkdir(parents=True, exist_ok=True)
        self._file = AppendedFile(folder / f"events.out.tfevents.{int(_now())}.{platform.node()}")
        first: list[dict[str, Any]] = [{"file_version": _VERSION}]
        if resumes_at is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            first += [{"step": resumes_at, "file_version": _VERSION}, {"step": resumes_at, "session_log": start}]
        self._append(*first)

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Append an event for each figure at `step`.

        Raises:
            OSError: the events cannot be written; the file has none of them.
        """
        values = [self._summaries.Summary.Value(tag=name, simple_value=value) for name, value in figures.items()]
        self._append(*({"step": step, "summary": self._summaries.Summary(value=[value])} for value in values))

    def close(self) -> None:
        """Close the file. A second call has no effect."""
        self._file.close()

    def _append(self, *events: Mapping[str, Any]) -> None:
        now = _now()
        self._file.append(
            b"".join(_framed(self._events.Event(wall_time=now, **event).SerializeToString()) for event in events)
        )


def _now() -> float:
    return datetime.now(UTC).timestamp()  # the real time, also in a replay


def _framed(data: bytes) -> bytes:
    """Return a record of a TFRecord file: the length, its checksum, the data, their checksum."""
    from tensorboardX.record_writer import masked_crc32c

    length = struct.pack("<Q", len(data))
    return b"".join((length, struct.pack("<I", masked_crc32c(length)), data, struct.pack("<I", masked_crc32c(data))))
