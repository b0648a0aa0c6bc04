"""Rejections: undeliverable messages and refused connections, counted, with a bounded number of log lines."""

from structlog.typing import FilteringBoundLogger

from orchestra.actors.statistics import MessageCounts

LOGGED = 10
"""Dead letters of each type for each recipient that are logged."""
KINDS = 1000
"""Pairs of recipient and type that are counted separately: names come from peers, which could invent any number."""
OTHERS = ("others", "any")
"""The pair that all further ones are counted under."""
REFUSALS = 8
"""Refused connections that are logged one by one in an interval, so that a flood of them does not fill the log."""
INTERVAL_S = 10.0


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


class Refusals:
    """Counts and logs a node's refused connections. It has no timer of its own: the heartbeat calls `sum_up`."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log
        self._since = float("-inf")
        """The time at which the interval began."""
        self._count = 0
        """Refusals in the interval."""
        self._last = ""

    def add(self, now: float, event: str, reason: str) -> None:
        """Count a refusal at the time `now`, in seconds; log it if it is among the first of the interval."""
        self.sum_up(now)
        if not self._count:
            self._since = now
        self._count += 1
        self._last = reason
        if self._count <= REFUSALS:
            self._log.warning(event, reason=reason)

    def sum_up(self, now: float, *, final: bool = False) -> None:
        """Log the number of further refusals if the interval is over, or if this is the `final` call."""
        if now - self._since < INTERVAL_S and not final:
            return
        more, self._count = self._count - REFUSALS, 0
        if more > 0:
            seconds = round(now - self._since, 1)
            self._log.warning("more connections refused", count=more, seconds=seconds, last=self._last)
