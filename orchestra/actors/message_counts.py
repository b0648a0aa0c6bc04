"""Who told whom what, how often: bounded, whatever names peers make up."""

from collections import Counter
from typing import Generic, TypeVar

from orchestra.actors.envelope import GUEST, is_guest

F = TypeVar("F", bound=tuple[object, ...])

LONGEST = 256
"""Characters of a sender that is told apart."""
OTHERS = "others"
"""What all further ones are counted as."""


class MessageCounts(Generic[F]):
    """Counts by flow: a sender, a type, and where it matters a recipient.

    Args:
        most: flows that are told apart; all further ones share one for each type.
    """

    __slots__ = ("_counts", "_most")

    def __init__(self, most: int) -> None:
        self._counts: Counter[F] = Counter()
        self._most = most

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, flow: F, count: int, otherwise: F) -> None:
        """Count messages of `flow`; of `otherwise` if it is not told apart."""
        counts = self._counts
        if flow not in counts and (len(counts) >= self._most or len(str(flow[0])) > LONGEST):
            flow = otherwise
        counts[flow] += count

    def counted(self) -> Counter[F]:
        """Return how many messages each flow had."""
        return self._counts.copy()


def others_like(sender: str) -> str:
    """Return what stands for senders that are not told apart; guests are no part of the run, among these neither."""
    return GUEST + OTHERS if is_guest(sender) else OTHERS
