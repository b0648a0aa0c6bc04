"""Flow control per recipient: what a sender may have on its way to one mailbox, and what the other side has to allow.

A sender may have `WINDOW` messages and about `WINDOW_BYTES` bytes on their way; what leaves the mailbox is credited
back, a quarter of the window at a time. Both sides keep the same account, so a peer that sends more than it may is
found out, and the room that its messages take is bounded whatever it does.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from orchestra.actors.codec import Buffer
from orchestra.errors import FrameError

if TYPE_CHECKING:
    from orchestra.wire.sender import Route

WINDOW = 4096
WINDOW_BYTES = 64 << 20
RECIPIENTS = 4096
"""Recipients of which an account is kept before those whose messages have all left are settled and forgotten."""


class Window:
    """What one sender still may send to one recipient."""

    __slots__ = ("count", "nbytes", "waiting")

    def __init__(self) -> None:
        self.count = 0
        self.nbytes = 0
        self.waiting: deque[tuple[asyncio.Future[None], Route | None, list[Buffer], int]] = deque()
        """Who waits, and what is sent then: a row of a route, or the pieces of a frame; and its bytes."""

    @property
    def used(self) -> float:
        """The share of the credit that is in use."""
        return min(max(self.count / WINDOW, self.nbytes / WINDOW_BYTES), 1.0)

    @property
    def full(self) -> bool:
        """Whether nothing more may be sent now."""
        return self.count >= WINDOW or self.nbytes >= WINDOW_BYTES

    def take(self, nbytes: int, *, bounded: bool = False) -> bool:
        """Use credit for one message. The last one may overshoot the bytes, so that no message is too large.

        A `bounded` one is sent in any case, and counts.
        """
        if (self.count >= WINDOW or self.nbytes >= WINDOW_BYTES) and not bounded:
            return False
        self.count += 1
        self.nbytes += nbytes
        return True


class _Account:
    """What the messages of one peer for one recipient take here, and how much of it has left since it was told."""

    __slots__ = ("count", "left", "left_bytes", "nbytes")

    def __init__(self) -> None:
        self.count = self.nbytes = self.left = self.left_bytes = 0


class ReceiveWindow:
    """The receiving side's accounts with one peer.

    Args:
        credit: sends the peer the credit for a recipient, so many messages and bytes.
    """

    def __init__(self, credit: Callable[[str, int, int], None]) -> None:
        self._credit = credit
        self._accounts: dict[str, _Account] = {}
        self._tidy_at = RECIPIENTS

    def __len__(self) -> int:
        return len(self._accounts)

    def take(self, recipient: str, nbytes: int, *, bounded: bool, count: int = 1) -> None:
        """Take note of `count` messages that came, together so many bytes; `bounded` ones may come in any case.

        Raises:
            FrameError: the peer had no credit left for it.
        """
        account = self._accounts.get(recipient)
        if account is None:
            account = self._open(recipient)
        if (account.count + count > WINDOW or account.nbytes >= WINDOW_BYTES) and not bounded:
            held = f"{account.count} messages ({account.nbytes:,} bytes)"
            raise FrameError(f"a message to {recipient} without credit: {held} are there already")
        account.count += count
        account.nbytes += nbytes

    def give_back(self, recipient: str, nbytes: int, count: int = 1) -> None:
        """Take note that `count` messages left the mailbox, or never came into it."""
        account = self._accounts[recipient]
        account.left += count
        account.left_bytes += nbytes
        if account.left >= WINDOW // 4 or account.left_bytes >= WINDOW_BYTES // 4:
            self._settle(recipient, account)

    def _settle(self, recipient: str, account: _Account) -> None:
        count, nbytes = account.left, account.left_bytes
        account.count -= count
        account.nbytes -= nbytes
        account.left = account.left_bytes = 0
        self._credit(recipient, count, nbytes)

    def _open(self, recipient: str) -> _Account:
        if len(self._accounts) >= self._tidy_at:
            for name, account in list(self._accounts.items()):
                if account.left == account.count:
                    if account.left:
                        self._settle(name, account)
                    del self._accounts[name]
            self._tidy_at = max(RECIPIENTS, 2 * len(self._accounts))
        account = self._accounts[recipient] = _Account()
        return account
