"""The echo of a terminal, switched off while a screen is shown: an echoed `^C` would move the screen by a row."""

import contextlib
import os
import signal
import termios
from collections.abc import Callable
from typing import TextIO


def silenced(stream: TextIO) -> Callable[[], None]:
    """Switch off the echo of the terminal behind `stream`; return a function that restores it.

    A terminal that belongs to another process is not changed. Keys keep their function.
    """
    try:
        descriptor = stream.fileno()
        if os.tcgetpgrp(descriptor) != os.getpgrp():
            return lambda: None  # this process is in the background: the terminal belongs to another
        before = termios.tcgetattr(descriptor)
    except (OSError, termios.error):
        return lambda: None  # no terminal, or not that of this process

    def change(local: int) -> None:
        # A process that was put into the background would be stopped here, unless the signal is blocked.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            with contextlib.suppress(termios.error):  # the terminal has been closed
                now = termios.tcgetattr(descriptor)
                now[3] = local
                termios.tcsetattr(descriptor, termios.TCSADRAIN, now)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    change(before[3] & ~termios.ECHO)
    return lambda: change(before[3])
