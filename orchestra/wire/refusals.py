"""Refusals: refused connections, counted, with one log line for each source in a minute."""

from structlog.typing import FilteringBoundLogger

REFUSALS = 8
"""Sources whose refusal is logged in an interval, so that a flood of them does not fill the log."""
INTERVAL_S = 60.0


class Refusals:
    """Counts and logs refused connections. It has no timer of its own: its owner calls `sum_up`."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log
        self._since = float("-inf")
        """The time at which the interval began."""
        self._count = 0
        """Refusals in the interval."""
        self._logged: set[str] = set()
        """The sources whose first refusal in the interval was logged."""
        self._last = ""

    def add(self, now: float, source: str, reason: str, *, expected: bool = False) -> None:
        """Count a refusal at the time `now`, in seconds; log it if it is the first of its source in the interval.

        One that is `expected`, since members of the run are sometimes refused so, is no warning.
        """
        self.sum_up(now)
        if not self._count:
            self._since = now
        self._count += 1
        self._last = reason
        if source not in self._logged and len(self._logged) < REFUSALS:
            self._logged.add(source)
            (self._log.info if expected else self._log.warning)("connection refused", reason=reason)

    def sum_up(self, now: float, *, final: bool = False) -> None:
        """Log the number of further refusals if the interval is over, or if this is the `final` call."""
        if now - self._since < INTERVAL_S and not final:
            return
        more, self._count = self._count - len(self._logged), 0
        self._logged.clear()
        if more > 0:
            seconds = round(now - self._since, 1)
            self._log.warning("more connections refused", count=more, seconds=seconds, last=self._last)
