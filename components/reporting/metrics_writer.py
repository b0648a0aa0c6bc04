"""Records every `Progress` of a run: a line in `metrics.jsonl`, and the same figures for loggers."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from components.reporting.appended_file import AppendedFile
from components.reporting.progress import Progress, flat_record
from components.reporting.replaced_file import replaced
from components.trackers.logger import Logger
from orchestra import read_records


class MetricsWriter:
    """Writes records as they come; each is in the files when `write` returns.

    An existing file is continued; an incomplete last line of a killed process is removed.
    Call `close` at the end. Only one task at a time may write.
    """

    def __init__(self, path: Path, loggers: Sequence[Logger] = (), resumes_at: int | None = None) -> None:
        """Open the file; create it if it is missing.

        Args:
            path: the file of JSON lines.
            loggers: receive the same figures, and are closed at the end.
            resumes_at: the environment steps from which a run continues. Records of later steps are removed, because
                these steps come again.

        Raises:
            OSError: the file cannot be written.
        """
        _cut_torn_line(path)
        if resumes_at is not None:
            _forget_after(path, resumes_at)
        self._file = AppendedFile(path)
        self._loggers = loggers

    def write(self, progress: Progress, more: Mapping[str, float | int | None] | None = None) -> None:
        """Append one flat record: `flat_record` of `progress`, and `more` figures beside them (a learner's own).

        The step for the loggers is `progress.env_steps`. A figure that is not finite is null in the file, and is
        not sent to loggers.

        Raises:
            OSError: it cannot be written, as on a full disk. The file has no incomplete record; later ones may succeed.
            ValueError: `more` names a field of `Progress`.
        """
        fields = flat_record(progress)
        more = more or {}
        if clashes := fields.keys() & more.keys():
            raise ValueError(f"a figure may not take the name of a field of Progress: {', '.join(sorted(clashes))}")
        record = {name: _finite(value) for name, value in (fields | dict(more)).items()}
        self._file.append(json.dumps(record, allow_nan=False).encode() + b"\n")
        figures = {name: value for name, value in record.items() if isinstance(value, (int, float))}
        del figures["env_steps"]
        for logger in self._loggers:
            logger.write(progress.env_steps, figures)

    def close(self) -> None:
        """Close the file and the loggers. A second call has no effect."""
        self._file.close()
        for logger in self._loggers:
            logger.close()


def _finite(value: Any) -> Any:
    # also NumPy's scalars, which json does not support
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
