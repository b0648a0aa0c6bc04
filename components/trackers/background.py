"""A logger in a thread of its own."""

import contextlib
import queue
import threading
from collections.abc import Callable, Mapping

from components.trackers.logger import Logger
from orchestra import log

WAITING = 10_000
"""Number of records that may wait; further ones are lost."""
CLOSE_S = 60.0
"""Seconds that a logger has at the end for the remaining records."""


class BackgroundLogger:
    """Makes a logger and calls it in a thread of its own, so that a slow server does not delay the run.

    Errors of the logger become warnings in the log: the first of several successive errors, and a total at the end.

    Args:
        make: makes the logger.
        name: name of the logger in warnings.
        close_s: seconds that the logger has when it is closed.
    """

    def __init__(self, make: Callable[[], Logger], name: str, *, close_s: float = CLOSE_S) -> None:
        self._make, self._name, self._close_s = make, name, close_s
        self._records: queue.Queue[tuple[int, Mapping[str, float]] | None] = queue.Queue(WAITING)
        self._closed = False
        self._lost = 0
        self._log = log.get(tracker=name)
        self._thread = threading.Thread(target=self._work, name=f"tracker-{name}", daemon=True)
        self._thread.start()

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Queue figures; they are lost if too many wait, or if the logger could not be made."""
        try:
            self._records.put_nowait((step, dict(figures)))
        except queue.Full:
            self._lost += 1

    def close(self) -> None:
        """Wait at most `close_s` seconds until the logger has taken the remaining records and is closed."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(queue.Full):  # the thread is still alive then, which is reported
            self._records.put(None, timeout=self._close_s)
            self._thread.join(self._close_s)
        if self._thread.is_alive():
            self._log.warning("a tracker did not end in time", seconds=self._close_s, left=self._records.qsize())
        if self._lost:
            self._log.warning("a tracker lost records", records=self._lost)

    def _work(self) -> None:
        try:
            logger = self._make()
        except Exception as error:  # any error of a third-party library
            self._log.warning("a tracker cannot be started", error=repr(error))
            while self._records.get() is not None:
                self._lost += 1
            return
        failing = False
        while (record := self._records.get()) is not None:
            try:
                logger.write(*record)
                failing = False
            except Exception as error:
                self._lost += 1
                if not failing:
                    self._log.warning("a tracker takes no figures", error=repr(error))
                failing = True
        try:
            logger.close()
        except Exception as error:
            self._log.warning("a tracker did not end well", error=repr(error))
