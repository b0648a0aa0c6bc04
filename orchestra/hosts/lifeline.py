"""The lifeline of a launched process: a pipe whose other end only its starter holds. The process ends with it."""

import contextlib
import faulthandler
import os
import select
import threading
from collections.abc import Callable, Iterator
from typing import Self

STUCK_S = 10.0
"""Seconds after which a process that does not end by itself is ended, whatever it is doing."""
ABANDONED = 1
"""The exit code of a process whose starter is dead."""
_STDERR = 2


class Lifeline:
    """While the block runs, waits in a thread for the end of the pipe, and then calls what `ends_by` says there.

    By default the process ends at once: it has nothing yet to leave in order.

    Args:
        fd: the reading end of the pipe, which is closed with the block.
        stuck_s: seconds after which the process is ended by force.
    """

    def __init__(self, fd: int, stuck_s: float = STUCK_S) -> None:
        self._fd = fd
        self._stuck_s = stuck_s
        self._lock = threading.Lock()
        self._on_end: Callable[[], object] = lambda: os._exit(ABANDONED)
        self._done, self._close = os.pipe()
        self._thread = threading.Thread(target=self._wait, name="lifeline", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._close)
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()
        os.close(self._done)
        os.close(self._fd)

    @contextlib.contextmanager
    def ends_by(self, on_end: Callable[[], object]) -> Iterator[None]:
        """While the block runs, call `on_end` in the thread in place of ending the process at once."""
        with self._lock:
            before, self._on_end = self._on_end, on_end
        try:
            yield
        finally:
            with self._lock:
                self._on_end = before

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.register(self._done, select.POLLIN)
        while not any(fd == self._done for fd, _ in poll.poll()):
            if os.read(self._fd, 1 << 16):
                continue
            # It needs no lock of the interpreter: it ends the process also while compiled code holds that.
            faulthandler.dump_traceback_later(self._stuck_s, exit=True, file=_STDERR)
            with self._lock:
                self._on_end()
            return
