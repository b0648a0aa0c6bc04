"""Signals that a block handles."""

import signal
from types import FrameType

from orchestra.nodes.stacks import handling


def test_the_earlier_handler_of_a_signal_returns_after_the_block() -> None:
    def earlier(number: int, frame: FrameType | None) -> None: ...

    def handler(number: int, frame: FrameType | None) -> None: ...

    usual = signal.signal(signal.SIGUSR1, earlier)
    try:
        with handling(handler, signal.SIGUSR1):
            assert signal.getsignal(signal.SIGUSR1) is handler
        assert signal.getsignal(signal.SIGUSR1) is earlier
    finally:
        signal.signal(signal.SIGUSR1, usual)
