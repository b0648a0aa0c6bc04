"""Rejections: undeliverable messages, counted, with a bounded number of log lines."""

from orchestra.actors.statistics import MessageCounts

LOGGED = 10
"""Dead letters of each type for each recipient that are logged."""
KINDS = 1000
"""Pairs of recipient and type that are counted separately: names come from peers, which could invent any number."""
OTHERS = ("others", "any")
"""The pair that all further ones are counted under."""


class DeadLetters:
    """Counts a node's undeliverable messages, in bounded memory."""

    def __init__(self) -> None:
        self.total = 0
        """Dead letters so far."""
        self.counts: MessageCounts[tuple[str, str]] = MessageCounts(KINDS)
        """Dead letters by recipient and type."""

    def count(self, recipient: str, kind: str) -> bool:
        """Count one; return True if it is among the first of its type for this recipient and should be logged."""
        self.total += 1
        return self.counts.add((recipient, kind), 1, OTHERS) <= LOGGED
