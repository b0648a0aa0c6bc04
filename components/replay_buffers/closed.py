"""What was closed, and must not be used any more."""

from types import TracebackType
from typing import NoReturn, Self


class Closed(RuntimeError):
    """It was used after `close`, or while it was being closed."""


class Closable:
    """What lets go of its memory when it is closed: by `close`, or at the end of a `with` block.

    Every public method raises `Closed` from then on; what it would cost to look each time is not paid.
    """

    closed = False
    """Whether it was closed."""

    def close(self) -> None:
        """Let go of what is held; batches that were drawn stay as they are. Closing again does nothing."""
        if self.closed:
            return
        self.closed = True
        for name in dir(type(self)):
            if not name.startswith("_") and name != "close" and callable(getattr(type(self), name)):
                setattr(self, name, self._refuse)
        self._release()

    def _release(self) -> None:
        """Let go of what is held."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise Closed(f"{type(self).__name__}: expected one that is open, it was closed")

    def __enter__(self) -> Self:
        if self.closed:
            self._refuse()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
