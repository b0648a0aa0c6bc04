"""Refusals: refused connections, counted, with one log line for each source in a minute."""

from structlog.typing import FilteringBoundLogger

REFUSALS = 8
"""Sources whose refusal is logged in an interval, so that a flood of them does not fill the log."""
INTERVAL_S = 60.0


class _Tally:
    """The refusals of an interval that are logged at one level."""

    def __init__(self) -> None:
        self.logged: set[str] = set()
        """The sources whose first refusal was logged."""
        self.more = 0
        """Refusals that were not logged."""
        self.last = ""
        """The reason of the last of those."""

    def add(self, source: str, reason: str) -> bool:
        """Count a refusal; return whether to log it."""
        if source not in self.logged and len(self.logged) < REFUSALS:
            self.logged.add(source)
            return True
        self.more, self.last = self.more + 1, reason
        return False


class Refusals:
    """Counts and logs refused connections. It has no timer of its own: its owner calls `sum_up`."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log
        self._since: float | None = None
        """The time at which the interval began; None before the first refusal."""
        self._expected, self._unexpected = _Tally(), _Tally()

    def add(self, now: float, source: str, reason: str, *, expected: bool = False) -> None:
        """Count a refusal at the time `now`, in seconds; log it if it is the first of its source in the interval.

        Members of a healthy run are sometimes refused so if it is `expected`: neither it nor the sum is a warning.
        """
        self.sum_up(now)
        if self._since is None:
            self._since = now
        if (self._expected if expected else self._unexpected).add(source, reason):
            (self._log.info if expected else self._log.warning)("connection refused", reason=reason)

    def sum_up(self, now: float, *, final: bool = False) -> None:
        """Log the number of further refusals if the interval is over, or if this is the `final` call."""
        if self._since is None or (now - self._since < INTERVAL_S and not final):
            return
        seconds = round(now - self._since, 1)
        for tally, log in ((self._unexpected, self._log.warning), (self._expected, self._log.info)):
            if tally.more:
                log("more connections refused", count=tally.more, seconds=seconds, last=tally.last)
        self._since, self._expected, self._unexpected = None, _Tally(), _Tally()
