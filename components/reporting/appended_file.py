"""A file that grows by whole pieces, even on a disk that is sometimes full."""

import contextlib
import os
from pathlib import Path


class AppendedFile:
    """Appends bytes to a file, without a buffer or a thread: the bytes are written when `append` returns.

    The file is made if it is missing. Call `close` at the end.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor: int | None = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def append(self, data: bytes) -> None:
        """Write `data` at the end.

        Raises:
            OSError: it cannot be written, as on a full disk. The file is as it was before.
            ValueError: the file is closed.
        """
        if self._descriptor is None:
            raise ValueError("append to a closed file")
        before = os.fstat(self._descriptor).st_size
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, before)
            raise

    def close(self) -> None:
        """Close the file. A second call has no effect."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)
