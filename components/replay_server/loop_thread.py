"""Event loop in a thread of its own, for synchronous callers."""

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Self, TypeVar

from components.replay_buffers.closed import Closed
from orchestra import run_loop

T = TypeVar("T")

POLL_S = 0.5
"""Seconds between two checks by a waiting caller that the thread is alive."""


class LoopThread:
    """A thread that runs `main(self)` on an event loop of its own until `main` returns.

    `main` calls `ready` once; `start` returns the value passed to it.

    Args:
        name: name of the thread, and of its owner in errors.
        main: coroutine function; it has to return soon after `closing` is set.
        ended: called in the thread after `main` has returned or raised; every call raises `Closed` from then on.
    """

    def __init__(
        self,
        name: str,
        main: Callable[["LoopThread"], Coroutine[Any, Any, None]],
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self.loop: asyncio.AbstractEventLoop
        self.closing: asyncio.Event
        """Event of the loop that is set when `main` has to return."""
        self._ready: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._main, self._ended, self._pid = main, ended, os.getpid()
        self._why: BaseException | None = None
        self._asked_to_close = False
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> Any:
        """Start the thread, and return the value that `main` passes to `ready`.

        Raises:
            Exception: the error of `main` before it was ready.
        """
        self._thread.start()
        try:
            return self._ready.result()
        except BaseException:
            self.close()
            raise

    def ready(self, value: object) -> None:
        """Let `start` return `value`."""
        self._ready.set_result(value)

    def call(self, work: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Run `work(*args)` on the loop, and return its result.

        Raises:
            Closed: the loop has ended, or ends during the call; the cause has the reason if it was not closed.
            Exception: the error of `work`.
        """
        self.check_open()
        if threading.get_ident() == self._thread.ident:
            raise RuntimeError(f"{self.name}: expected to be called from another thread than its own")
        coroutine = work(*args)
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except RuntimeError:
            coroutine.close()
            raise self._closed() from self._why
        try:
            while True:
                try:
                    return future.result(POLL_S)
                except TimeoutError:
                    if future.done():
                        return future.result()  # `work` itself may have raised a TimeoutError
                    if not self._thread.is_alive():  # a loop that has just ended does not start the call
                        coroutine.close()
                        raise self._closed() from self._why
        except concurrent.futures.CancelledError:
            raise self._closed() from self._why
        except BaseException:
            future.cancel()  # matters after Ctrl-C in this thread
            raise

    def post(self, function: Callable[..., object], *args: Any) -> None:
        """Call a function on the loop soon, without waiting for it.

        Raises:
            Closed: the loop has ended.
        """
        try:
            self.loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            raise self._closed() from self._why

    def check_open(self) -> None:
        """Raise `Closed` if the loop has ended or was asked to."""
        if self._asked_to_close or os.getpid() != self._pid:
            raise self._closed() from self._why

    def close(self) -> None:
        """End the loop, and wait for the thread. Closing again does nothing."""
        self._asked_to_close = True
        if self._thread.is_alive() and os.getpid() == self._pid:
            self._begun.wait()
            with suppress(RuntimeError):  # the loop has just ended on its own
                self.loop.call_soon_threadsafe(self.closing.set)
            if threading.get_ident() != self._thread.ident:
                self._thread.join()

    def _closed(self) -> Closed:
        if os.getpid() != self._pid:
            return Closed(f"{self.name}: expected to be used by the process that made it, not by a fork")
        if self._why is not None:
            return Closed(f"{self.name} has failed: {self._why}")
        return Closed(f"{self.name}: expected one that is open, it was closed")

    def _run(self) -> None:
        try:
            run_loop(self._live())
        except BaseException as error:
            self._why = error
            if not self._ready.done():
                self._ready.set_exception(error)
        finally:
            self._asked_to_close = True
            self._begun.set()

    async def _live(self) -> None:
        self.loop, self.closing = asyncio.get_running_loop(), asyncio.Event()
        self._begun.set()
        if self._asked_to_close:
            return
        try:
            await self._main(self)
        except BaseException as error:
            self._why = error
            raise
        finally:
            self._asked_to_close = True
            self._ended()  # running calls are cancelled with the loop


class ThreadOwner:
    """Base of an object whose work runs in a `LoopThread`; a context manager that closes it."""

    _thread: LoopThread

    def close(self) -> None:
        """Disconnect, and end the thread. Closing again does nothing."""
        self._thread.close()

    def __enter__(self) -> Self:
        self._thread.check_open()
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class Signal:
    """Wakes all tasks that wait for a change. It belongs to one event loop."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    async def wait(self) -> None:
        """Wait for the next `notify`."""
        await self._next.wait()

    def notify(self) -> None:
        """Wake all waiting tasks."""
        now, self._next = self._next, asyncio.Event()
        now.set()


async def first_of(*waiting: Coroutine[Any, Any, Any]) -> None:
    """Run coroutines until the first one ends, and cancel the others. An exception of the first one propagates."""
    tasks = [asyncio.get_running_loop().create_task(it) for it in waiting]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            if not task.done():
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
