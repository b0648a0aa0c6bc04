"""What is typed at a terminal while a screen is drawn on it must not be shown: a `^C` moves the screen by a row."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from typing import TextIO


def silenced(stream: TextIO) -> Callable[[], None]:
    """Stop the terminal behind `stream` from showing what is typed at it; return what makes it do so again.

    A terminal that is not this process's to change, or none at all, is left alone. Keys keep their meaning.
    """
    if sys.platform == "win32":
        return lambda: None
    import termios

    try:
        descriptor = stream.fileno()
        if os.tcgetpgrp(descriptor) != os.getpgrp():
            return lambda: None  # it is in the background: the terminal is somebody else's now
        before = termios.tcgetattr(descriptor)
    except (OSError, termios.error):
        return lambda: None  # no terminal, or one that this process does not belong to

    def change(local: int) -> None:
        # Whoever has been put into the background meanwhile would be stopped for this, unless the signal is blocked.
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
