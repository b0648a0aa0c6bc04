"""What was closed, and must not be used any more."""

from types import TracebackType
from typing import Self


class Closed(RuntimeError):
    """It was used after `close`, or while it was being closed."""


class Closable:
    """A memory that lets go of what it holds when it is closed: by `close`, or at the end of a `with` block."""

    closed = False
    """Whether it was closed; all that it can then be asked for raises `Closed`."""

    def close(self) -> None:
        """Let go of what is held; of batches that were drawn nothing changes. Closing again does nothing."""
        if not self.closed:
            self.closed = True
            self._release()

    def _release(self) -> None:
        """Let go of what is held."""

    def _check_open(self) -> None:
        if self.closed:
            raise Closed(f"{type(self).__name__}: expected one that is open, it was closed")

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
