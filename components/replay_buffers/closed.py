"""Objects that refuse every call once they are closed."""

from types import TracebackType
from typing import NoReturn, Self


class Closed(RuntimeError):
    """The object was used after `close`, or while it was being closed."""


class Closable:
    """Base of objects that free their memory on `close`, or at the end of a `with` block.

    Every public method raises `Closed` from then on. `close` replaces the methods, so an open object needs no checks.
    """

    closed = False
    """True once the object is closed."""

    def close(self) -> None:
        """Free the memory; drawn batches stay valid. Closing again does nothing."""
        if self.closed:
            return
        self.closed = True
        for name in dir(type(self)):
            if not name.startswith("_") and name != "close" and callable(getattr(type(self), name)):
                setattr(self, name, self._refuse)
        self._release()

    def _release(self) -> None:
        """Free the memory."""

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
