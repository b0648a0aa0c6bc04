"""What a node says of connections that it refused: the first few, then how many more there were."""

from structlog.typing import FilteringBoundLogger

SAID = 8
"""Refusals that are told one by one in an interval; a door that is knocked at all the time fills no log."""
INTERVAL_S = 10.0


class Refusals:
    """A node's account of the connections that it refused. It needs no timer: whoever has one calls `sum_up`."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log
        self._since = float("-inf")
        """When the interval began."""
        self._count = 0
        """Refusals in it."""
        self._last = ""

    def tell(self, now: float, event: str, reason: str) -> None:
        """Log a refusal at the time `now`, in seconds, if it is among the first; else count it."""
        self.sum_up(now)
        if not self._count:
            self._since = now
        self._count += 1
        self._last = reason
        if self._count <= SAID:
            self._log.warning(event, reason=reason)

    def sum_up(self, now: float, *, finally_: bool = False) -> None:
        """Log how many were counted, if the interval is over; `finally_` says that nobody will ask again."""
        if now - self._since < INTERVAL_S and not finally_:
            return
        more, self._count = self._count - SAID, 0
        if more > 0:
            seconds = round(now - self._since, 1)
            self._log.warning("more connections refused", count=more, seconds=seconds, last=self._last)
