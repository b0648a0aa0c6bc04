"""Flow control per recipient: how much a sender may have in flight to one mailbox, and how the receiver enforces it.

A sender may have `WINDOW` messages and about `WINDOW_BYTES` bytes in flight. The receiver credits what leaves the
mailbox, a quarter of the window at a time. Both sides keep the same account, so the receiver detects a peer that
exceeds its credit, and the memory for a peer's messages is bounded.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from orchestra.actors.waiters import Waiters
from orchestra.errors import FrameError
from orchestra.wire.latest import LatestVersions

T = TypeVar("T")

WINDOW = 4096
WINDOW_BYTES = 64 << 20
RECIPIENTS = 4096
"""Accounts of one peer above which accounts without queued messages are settled and removed."""


@dataclass(slots=True, eq=False)
class Window(Generic[T]):
    """The credit of one sender for one recipient.

    `T` is an entry that waits for credit.
    """

    count: int = 0
    """Messages in flight."""
    nbytes: int = 0
    """Their bytes."""
    waiting: Waiters[T] = field(default_factory=Waiters)
    """The entries that wait for credit, oldest first, by the futures of their senders."""
    latest: LatestVersions | None = None
    """The latest-wins messages, once there was one."""

    @property
    def used(self) -> float:
        """The share of the credit in use, from 0 to 1."""
        return min(max(self.count / WINDOW, self.nbytes / WINDOW_BYTES), 1.0)

    @property
    def full(self) -> bool:
        """True if no credit is left."""
        return self.count >= WINDOW or self.nbytes >= WINDOW_BYTES

    def take(self, nbytes: int, *, solicited: bool = False) -> bool:
        """Use credit for one message; return False if none is left.

        The last message may exceed the byte limit, so every message fits. A `solicited` one is always sent and counted.
        """
        if (self.count >= WINDOW or self.nbytes >= WINDOW_BYTES) and not solicited:
            return False
        self.count += 1
        self.nbytes += nbytes
        return True

    def wait(self, turn: asyncio.Future[None], entry: T) -> Awaitable[None]:
        """Add an entry that waits for credit; return an awaitable of `turn`. A cancelled wait leaves nothing behind."""
        self.waiting[turn] = entry
        return self.waiting.wait(turn)


class _Account:
    """Messages of one peer for one recipient: those received, and those that left since the last credit."""

    __slots__ = ("count", "left", "left_bytes", "nbytes")

    def __init__(self) -> None:
        self.count = self.nbytes = self.left = self.left_bytes = 0


class ReceiveWindow:
    """The receiving side's accounts with one peer.

    Args:
        credit: sends the peer credit for a recipient: its address, messages, bytes.
    """

    def __init__(self, credit: Callable[[str, int, int], None]) -> None:
        self._credit = credit
        self._accounts: dict[str, _Account] = {}
        self._tidy_at = RECIPIENTS

    def __len__(self) -> int:
        return len(self._accounts)

    def take(self, recipient: str, nbytes: int, *, solicited: bool, count: int = 1) -> None:
        """Account for `count` received messages of `nbytes` bytes together; `solicited` ones need no credit.

        Raises:
            FrameError: the peer had no credit left.
        """
        account = self._accounts.get(recipient)
        if account is None:
            account = self._open(recipient)
        if (account.count + count > WINDOW or account.nbytes >= WINDOW_BYTES) and not solicited:
            held = f"{account.count} messages ({account.nbytes:,} bytes)"
            raise FrameError(f"a message to {recipient} without credit: {held} are there already")
        account.count += count
        account.nbytes += nbytes

    def give_back(self, recipient: str, nbytes: int, count: int = 1) -> None:
        """Account for `count` messages that left the mailbox, or never entered it."""
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
