"""Offloaded work: functions that an actor runs in a thread, and how they learn of a cancellation."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

T = TypeVar("T")


class _Thread(threading.local):
    cancelled: threading.Event | None = None


_thread = _Thread()


def offload_cancelled() -> bool:
    """Return whether the current offloaded function was cancelled: by a withdrawn request or an abort of the actor.

    For functions given to `Actor.offload`, which should check it from time to time. A thread cannot be stopped from
    outside: a function that never checks runs to its end, and the actor waits for it.
    """
    return _thread.cancelled is not None and _thread.cancelled.is_set()


def _work(cancelled: threading.Event, function: Callable[..., T], args: tuple[Any, ...]) -> T:
    _thread.cancelled = cancelled
    try:
        return function(*args)
    finally:
        _thread.cancelled = None


async def in_thread(
    executor: Executor, aborting: Callable[[], bool], function: Callable[..., T], args: tuple[Any, ...]
) -> T:
    """Run `function(*args)` in a thread and return its result.

    When the waiting task is cancelled, `function` sees it (`offload_cancelled`), and this waits until it has returned,
    so that nothing else touches its data before. An actor that is `aborting` does not wait.
    """
    cancelled = threading.Event()
    job: Future[T] = executor.submit(_work, cancelled, function, args)
    waiter = asyncio.wrap_future(job)
    try:
        return await asyncio.shield(waiter)
    except asyncio.CancelledError:
        cancelled.set()
        if not job.cancel() and not aborting():
            await asyncio.wait({waiter})
        raise
