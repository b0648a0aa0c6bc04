"""What an actor has computed in a thread, and how the thread learns that nobody waits for it any longer."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

T = TypeVar("T")


class _Thread(threading.local):
    given_up: threading.Event | None = None


_thread = _Thread()


def cancelled() -> bool:
    """Return whether what is being computed was given up: by whoever asked for it, or because the actor is aborted.

    For a function that was handed to `Actor.offload`, to look at from time to time. A thread cannot be stopped from
    outside, so a function that does not look runs to its end, and the actor waits for it.
    """
    return _thread.given_up is not None and _thread.given_up.is_set()


def _told(given_up: threading.Event, function: Callable[..., T], args: tuple[Any, ...]) -> T:
    _thread.given_up = given_up
    try:
        return function(*args)
    finally:
        _thread.given_up = None


async def in_thread(
    executor: Executor, aborting: Callable[[], bool], function: Callable[..., T], args: tuple[Any, ...]
) -> T:
    """Run `function(*args)` in a thread and return its result.

    When the task that waits here is cancelled, `function` sees it (`cancelled`), and this still waits until it has
    returned: what it works on is not touched by anybody else before. An actor that is `aborting` does not wait.
    """
    given_up = threading.Event()
    job: Future[T] = executor.submit(_told, given_up, function, args)
    waiter = asyncio.wrap_future(job)
    try:
        return await asyncio.shield(waiter)
    except asyncio.CancelledError:
        given_up.set()
        if not job.cancel() and not aborting():
            await asyncio.wait({waiter})
        raise
