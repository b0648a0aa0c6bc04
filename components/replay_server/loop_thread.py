"""A thread of its own for what lives on an event loop, for those who have none."""

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from components.replay_buffers.closed import Closed
from orchestra import log
from orchestra.runs.runner import run_loop

T = TypeVar("T")

LOOK_S = 0.5
"""How often whoever waits for the thread looks whether it lives."""

_logging = threading.Lock()
_logged: list[Any] = []


class Background:
    """Runs `main(ready)` in a thread, until `main` returns. `ready` is called with what the others wait for.

    Args:
        name: of the thread, and of what runs there, for errors.
        main: what to run; it is to return soon after `closing` was set.
        ended: called in that thread when `main` has returned or raised, and every call raises `Closed`.
    """

    def __init__(
        self,
        name: str,
        main: Callable[["Background"], Coroutine[Any, Any, None]],
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self.loop: asyncio.AbstractEventLoop
        self.closing: asyncio.Event
        """Set, on the loop, when it is to end."""
        self._ready: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._main, self._ended, self._pid = main, ended, os.getpid()
        self._why: BaseException | None = None
        self._asked_to_close = False
        self._begun = threading.Event()
        self._calls: dict[asyncio.Task[Any], concurrent.futures.Future[Any]] = {}
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> Any:
        """Begin, wait until it is ready, and return what that came with.

        Raises:
            Exception: what `main` raised instead.
        """
        self._thread.start()
        try:
            return self._ready.result()
        except BaseException:
            self.close()
            raise

    def ready(self, value: object) -> None:
        """Say that it is ready."""
        self._ready.set_result(value)

    def call(self, work: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Run `work(*args)` on the loop, and return what it returns.

        Raises:
            Closed: it has ended, or ends meanwhile; its cause says why if it was not closed.
            Exception: what `work` raised.
        """
        self.check_open()
        if threading.get_ident() == self._thread.ident:
            raise RuntimeError(f"{self.name}: expected to be called from another thread than its own")
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        self.post(self._begin, future, work, args)
        try:
            while True:
                try:
                    return future.result(LOOK_S)
                except TimeoutError:
                    if future.done():
                        return future.result()  # or it was `work` that raised this
                    if not self._thread.is_alive():  # a loop that has just ended would leave it waiting
                        raise self._closed() from self._why
        except concurrent.futures.CancelledError:
            raise self._closed() from self._why
        except BaseException:
            if not future.done():  # Ctrl-C, while it was waited for
                with suppress(Closed):
                    self.post(self._give_up, future)
            raise

    def post(self, function: Callable[..., object], *args: Any) -> None:
        """Call a function on the loop, soon."""
        try:
            self.loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            raise self._closed() from self._why

    def check_open(self) -> None:
        """Raise `Closed` if it has ended."""
        if self._asked_to_close or os.getpid() != self._pid:
            raise self._closed() from self._why

    def close(self) -> None:
        """End it, and wait for that. Closing again does nothing."""
        self._asked_to_close = True
        if self._thread.is_alive() and os.getpid() == self._pid:
            self._begun.wait()
            with suppress(RuntimeError):  # it has just ended by itself
                self.loop.call_soon_threadsafe(self.closing.set)
            if threading.get_ident() != self._thread.ident:
                self._thread.join()

    def _closed(self) -> Closed:
        if os.getpid() != self._pid:
            return Closed(f"{self.name}: expected to be used by the process that made it, not by a fork")
        if self._why is not None:
            return Closed(f"{self.name} has failed: {self._why}")
        return Closed(f"{self.name}: expected one that is open, it was closed")

    def _begin(
        self,
        future: concurrent.futures.Future[T],
        work: Callable[..., Coroutine[Any, Any, T]],
        args: tuple[Any, ...],
    ) -> None:
        task = self.loop.create_task(work(*args))
        self._calls[task] = future
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        future = self._calls.pop(task)
        if task.cancelled():
            future.cancel()
        elif (error := task.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(task.result())

    def _give_up(self, future: concurrent.futures.Future[Any]) -> None:
        for task, waited_for in self._calls.items():
            if waited_for is future:
                task.cancel()

    def _run(self) -> None:
        try:
            with _warnings_to_stderr(self.name):
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
            for task in list(self._calls):
                task.cancel()
            await asyncio.gather(*self._calls, return_exceptions=True)
            self._ended()


async def first_of(*waiting: Coroutine[Any, Any, Any]) -> None:
    """Wait until one of them is done, and give the others up; what that one raised is raised."""
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


@contextmanager
def _warnings_to_stderr(name: str) -> Iterator[None]:
    """Keep logging set up while any of them runs: each thread by itself would take it from the others when it ends."""
    with _logging:
        if not _logged:
            _logged.append(log.at_least_warnings(name))
            _logged[0].__enter__()
        _logged.append(name)
    try:
        yield
    finally:
        with _logging:
            _logged.remove(name)
            if len(_logged) == 1:
                _logged.pop().__exit__(None, None, None)
