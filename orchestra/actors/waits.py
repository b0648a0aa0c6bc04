"""What an actor waits for in the middle of a message. Noted while it lasts, read by whoever looks into a run."""

import inspect
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Wait:
    """One thing that has to happen before a handler goes on. Its text is made only when somebody looks."""

    __slots__ = ("thread", "what", "whose")

    def __init__(self, what: str, whose: object) -> None:
        self.what = what
        self.whose = whose
        self.thread = 0
        """The thread that does the work, where it is work in a thread, once that has begun."""

    def __str__(self) -> str:
        return f"{self.what} {self.whose if isinstance(self.whose, str) else _name(self.whose)}"

    def work(self, function: Callable[..., T], *args: Any) -> T:
        """Call `function` in the thread that this is called in, and take note which that is."""
        self.thread = threading.get_ident()
        try:
            return function(*args)
        finally:
            self.thread = 0

    @classmethod
    def for_thread(cls, function: Callable[..., Any], args: tuple[Any, ...]) -> "Wait":
        """Make the wait for `function(*args)` in a thread."""
        return cls("in a thread:", (function, args))

    @classmethod
    def for_answer(cls, of: str) -> "Wait":
        """Make the wait for an answer."""
        return cls("asks", of)

    @classmethod
    def for_room(cls, at: str) -> "Wait":
        """Make the wait for room in a mailbox, or for its node to be reached."""
        return cls("waits for room at", at)


def _name(work: Any) -> str:
    function, args = work
    # `with_threads(4, policy.learn, batch)` is named after what is called in the end.
    called = [entry for entry in args if callable(entry) and hasattr(entry, "__qualname__")]
    function = called[0] if called else function
    if inspect.ismethod(function) and not isinstance(function.__self__, type):
        return f"{type(function.__self__).__qualname__}.{function.__name__}"  # also of one that a base class defines
    inner = getattr(function, "func", function)  # a partial is named after what it wraps
    return str(getattr(inner, "__qualname__", None) or type(inner).__qualname__)
