"""Offloaded work: functions that an actor runs in a thread, and how they learn of a cancellation."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextvars import copy_context
from typing import Any, TypeVar

from orchestra.actors import codec
from orchestra.actors.message import Message
from orchestra.actors.ref import Sender
from orchestra.errors import Unreachable, UsageError

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


def wrong_thread(recipient: str) -> UsageError:
    """Return the error of a `tell_nowait` outside the thread of the node's event loop."""
    name = threading.current_thread().name
    return UsageError(
        f"tell_nowait to {recipient} in the thread {name!r}: only the thread of the node's event loop may call it; "
        "use tell_threadsafe"
    )


async def _deliver(sender: Sender, recipient: str, message: Message) -> None:
    waiting = sender.post(recipient, message)
    if waiting is not None:
        await waiting


def post_threadsafe(sender: Sender, loop: asyncio.AbstractEventLoop, recipient: str, message: Message) -> Future[None]:
    """Have `sender` deliver `message` on `loop`, the loop of its node; return a future of the delivery.

    Raises:
        Unreachable: the loop is closed.
    """
    message, _ = codec.isolate(message)  # now: the caller may go on to change its arrays
    delivering = _deliver(sender, recipient, message)
    try:
        return asyncio.run_coroutine_threadsafe(delivering, loop)
    except RuntimeError as error:
        delivering.close()
        raise Unreachable(f"{recipient} cannot be told anything: its node has stopped") from error


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
    job: Future[T] = executor.submit(copy_context().run, _work, cancelled, function, args)
    waiter = asyncio.wrap_future(job)
    try:
        return await asyncio.shield(waiter)
    except asyncio.CancelledError:
        cancelled.set()
        if not job.cancel() and not aborting():
            await asyncio.wait({waiter})
        raise
