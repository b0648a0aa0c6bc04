"""What an actor was told: by whom, what, how often; and the last of it, for the story of a failure."""

from collections import Counter, deque

from orchestra.actors.message import Message
from orchestra.actors.message_counts import MessageCounts, others_like

FLOWS = 1000
"""Pairs of sender and type that are told apart for one actor."""
STORY = 8
"""Runs of equal deliveries that a failure tells of."""


class Deliveries:
    """One actor's account. Messages of one type and sender that follow each other are counted as one run.

    Whoever delivers calls `turn` when the type or the sender is another than the last time, and then adds one to
    `count`: a message like the one before costs an addition.
    """

    __slots__ = ("_begun", "_counts", "_recent", "count", "kind", "sender")

    def __init__(self) -> None:
        self.count = 0
        """Messages delivered."""
        self.kind: type[Message] | None = None
        """The type of the last one."""
        self.sender = ""
        """Whoever sent it."""
        self._begun = 0
        self._counts: MessageCounts[tuple[str, type[Message]]] = MessageCounts(FLOWS)
        self._recent: deque[tuple[str, type[Message], int]] = deque(maxlen=STORY)

    def turn(self, kind: type[Message], sender: str) -> None:
        """Begin a new run, before its first message is counted."""
        self._end_run()
        self.kind = kind
        self.sender = sender

    def message_counts(self) -> Counter[tuple[str, type[Message]]]:
        """Return how many messages came, by sender and type."""
        message_counts = self._counts.counted()
        if self.kind is not None and self.count > self._begun:
            message_counts[self.sender, self.kind] += self.count - self._begun
        return message_counts

    def story(self) -> str:
        """Return the last deliveries as text."""
        runs = list(self._recent)
        if self.kind is not None and self.count > self._begun:
            runs.append((self.sender, self.kind, self.count - self._begun))
        if not runs:
            return "it had handled nothing yet"
        told = (
            f"{kind.__name__} from {sender}{f', {count} times' if count > 1 else ''}" for sender, kind, count in runs
        )
        return f"last deliveries, newest last: {'; '.join(list(told)[-STORY:])}"

    def _end_run(self) -> None:
        count = self.count - self._begun
        if self.kind is not None and count:
            self._counts.add((self.sender, self.kind), count, (others_like(self.sender), self.kind))
            self._recent.append((self.sender, self.kind, count))
        self._begun = self.count
