"""Files that are whole or not there: replaced in one step, and read up to their last complete record."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from pydantic_core import PydanticSerializationError, to_json


@contextlib.contextmanager
def replacing(path: Path, *, mode: int = 0o644) -> Iterator[IO[bytes]]:
    """Yield a file to write, which replaces the one at `path` when the block ends.

    A reader, and the disk after a power cut, has the old file or the whole new one, also if the block raises. A process
    that dies leaves a file with `.partial` after its name, which the next attempt replaces.

    Args:
        path: the file.
        mode: the permissions of the new file, less the umask. It has them from its first byte on.

    Raises:
        OSError: the file cannot be written.
    """
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)  # else it would keep its permissions
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself is in the folder
    finally:
        os.close(folder)


def write_json(path: Path, value: object, *, mode: int = 0o644) -> None:
    """Write `value` as `replacing` does.

    Infinities and NaN become null, paths become text, and numpy scalars become numbers.

    Args:
        path: the file.
        value: mappings, sequences and scalars.
        mode: the permissions of the file.

    Raises:
        TypeError: `value` holds something that JSON cannot express.
        OSError: the folder cannot be written to.
    """
    try:
        text = to_json(value, indent=2, inf_nan_mode="null", fallback=_plain) + b"\n"
    except PydanticSerializationError as error:
        raise TypeError(str(error)) from error
    with replacing(path, mode=mode) as file:
        file.write(text)


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the records of a file of JSON lines. An incomplete last line, which is being written, is left out.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line is no JSON object.
    """
    records = []
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):  # no newline follows the last piece: it is incomplete, or empty
        try:
            record = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: not a record: {error}") from error
        if not isinstance(record, dict):
            raise ValueError(f"{path}, line {number}: not a record: {line[:40]!r}")
        records.append(record)
    return records


def _plain(value: object) -> object:
    import numpy as np  # reading a run directory does without it

    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} is not JSON serializable")
