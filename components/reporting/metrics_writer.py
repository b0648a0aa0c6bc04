"""Keeps every `Progress` of a run: a line of `metrics.jsonl`, and the same figures as TensorBoard events."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from components.reporting.appended_file import AppendedFile
from components.reporting.event_file import EventFile
from components.reporting.progress import Progress, flat_record
from components.reporting.replaced_file import replaced
from orchestra import read_records


class MetricsWriter:
    """Writes records as they come; each is in the files when `write` returns.

    An existing file is continued, without the half line that a killed process may have left at its end.
    Call `close` at the end. One task at a time may write.
    """

    def __init__(self, path: Path, tensorboard: Path | None = None, resumes_at: int | None = None) -> None:
        """Open both outputs; create them where they are missing.

        Args:
            path: the file of JSON lines.
            tensorboard: the folder for TensorBoard events; without one none are written.
            resumes_at: the environment steps from which a run goes on: what was written of later ones is forgotten,
                since they come again.

        Raises:
            OSError: one of them cannot be written to.
        """
        _cut_torn_line(path)
        if resumes_at is not None:
            _forget_after(path, resumes_at)
        self._file = AppendedFile(path)
        self._events = None if tensorboard is None else EventFile(tensorboard, resumes_at)

    def write(self, progress: Progress, more: Mapping[str, float | int | None] | None = None) -> None:
        """Append one flat record: `flat_record` of `progress`, and `more` figures beside them (a learner's own).

        The step of every TensorBoard event is `progress.env_steps`. A figure that is not finite is null in the file
        and no event.

        Raises:
            OSError: it cannot be written, as on a full disk. Neither file has a half record; a later one may be whole.
            ValueError: `more` names a field of `Progress`.
        """
        fields = flat_record(progress)
        more = more or {}
        if clashes := fields.keys() & more.keys():
            raise ValueError(f"a figure may not take the name of a field of Progress: {', '.join(sorted(clashes))}")
        record = {name: _finite(value) for name, value in (fields | dict(more)).items()}
        self._file.append(json.dumps(record, allow_nan=False).encode() + b"\n")
        if self._events is not None:
            figures = {name: value for name, value in record.items() if isinstance(value, (int, float))}
            del figures["env_steps"]
            self._events.write(progress.env_steps, figures)

    def close(self) -> None:
        """Close the files. A second call has no effect."""
        self._file.close()
        if self._events is not None:
            self._events.close()


def _finite(value: Any) -> Any:
    # numpy's scalars too, which json does not know
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cut_torn_line(path: Path) -> None:
    if not path.exists():
        return
    with path.open("rb+") as file:
        file.truncate(file.read().rfind(b"\n") + 1)


def _forget_after(path: Path, env_steps: int) -> None:
    kept = [json.dumps(record) + "\n" for record in read_records(path) if record["env_steps"] <= env_steps]
    with replaced(path) as rewritten:
        rewritten.write_text("".join(kept), encoding="utf-8")
