"""Files that are replaced in one step."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yield a path to write to. The file there replaces the one at `path` when the block ends without an error.

    A reader finds the old file or the whole new one. Several threads may replace one file at the same time.

    Raises:
        OSError: the file cannot be replaced.
    """
    unfinished = path.with_name(f".{secrets.token_hex(4)}.{path.name}")
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
