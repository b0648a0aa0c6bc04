"""The time until a lost host plays again, for `hosts.py`.

One host of three is lost: its link is cut and its processes are killed; if it is simulated, its agent is killed. It can
be reached again once the others have played alone for a while.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hosts_run import PLAYING, QMIX, WORKERS, HostedRun, Place, Places, hosted

HOSTS = 3
TARGET_S = 30.0
BACK = 0.95
"""Share of the rate before the loss from which on the rate counts as back."""
SEEN = 0.9
"""Largest rate of the other hosts, as a share of the rate before the loss, at which the loss counts as visible."""
WINDOW_S = 8.0
"""Shortest time over which a rate is taken, in seconds: two records of the run."""
AFTER_S = 60.0
"""Seconds for which a returned host is watched."""
LIMIT_S = 540.0
"""Seconds that the whole measurement may take."""
Records = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Return:
    """Rates before, during and after the loss, in environment steps a second."""

    before: float
    without: float
    """The rate while the host was known to be gone."""
    after: float
    """The rate of the last window."""
    workers_s: float
    """Seconds from when the host could be reached until its workers had joined, exact to one record, 5 s."""
    rate_s: float | None
    """Seconds from when the host could be reached until a window with 95 % of the old rate begins; None without one."""

    @property
    def missed(self) -> str:
        """Why the target was missed; empty if it was not."""
        if self.without > SEEN * self.before:
            return f"the loss does not show: the others had {self.without / self.before:.0%} of the rate before"
        if self.rate_s is None:
            return f"the rate was not back within {AFTER_S:g} s: {self.after / self.before:.0%} of the rate before"
        return "" if self.rate_s <= TARGET_S else f"target: {TARGET_S:g} s"

    def __str__(self) -> str:
        rate = "not back" if self.rate_s is None else f"back after {self.rate_s:.1f} s"
        return (
            f"{self.before:,.0f} steps/s before, {self.without:,.0f} without the host, {self.after:,.0f} afterwards: "
            f"workers after {self.workers_s:.1f} s, the rate {rate} ({self.missed or f'target: {TARGET_S:g} s'})"
        )


def returning(options: argparse.Namespace, places: Places, scratch: Path) -> Return:
    """Lose one host of three, let it come back, and return the rates.

    Raises:
        SystemExit: nothing was collected in a phase, or the measurement took longer than `LIMIT_S`.
    """
    end = time.monotonic() + LIMIT_S
    with places(HOSTS, scratch) as place, hosted(place, QMIX, *PLAYING) as run:

        def until(condition: Callable[[], object], what: str) -> None:
            run.until(condition, what, end - time.monotonic())

        def rate(seconds: float, what: str) -> float:
            """Let the run go on for `seconds`, and return its rate in that time."""
            since = _now(run)
            until(lambda: _now(run) >= since + seconds, what)
            records = run.records()
            return rate_between(records, since, records[-1]["elapsed_s"])

        until(lambda: run.records() and _workers(run) == WORKERS * HOSTS, "all workers")
        rate(5.0, "the first experience")
        before = rate(max(options.seconds, WINDOW_S), "the rate before the loss")
        gone = len(run.log("host gone"))
        _lose(place, run)
        until(lambda: len(run.log("host gone")) > gone, "the loss")
        until(lambda: _workers(run) == WORKERS * (HOSTS - 1), "the loss of its workers")
        without = rate(max(options.seconds, WINDOW_S), "the rate without the host")
        if place.hosts:
            place.hosts[1].mend()
        since = _now(run)
        until(lambda: _workers(run) == WORKERS * HOSTS, "the workers of the host")
        workers_s = _now(run) - since
        until(lambda: _now(run) >= since + AFTER_S, "the rate")
        return return_of(run.records(), since, before, without, workers_s)


def _lose(place: Place, run: HostedRun) -> None:
    if place.hosts:
        place.hosts[1].cut()
        place.hosts[1].kill_all(but=place.servers)
    else:
        run.agents()[1].kill()


def _now(run: HostedRun) -> float:
    return float(run.records()[-1]["elapsed_s"])


def _workers(run: HostedRun) -> int:
    return int(run.records()[-1]["workers"])


def return_of(records: Records, since: float, before: float, without: float, workers_s: float) -> Return:
    """Judge the records after `since` against the rate before the loss.

    Raises:
        SystemExit: a rate is 0, or the records after `since` are too few for one.
    """
    windows = _windows([record for record in records if record["elapsed_s"] >= since])
    if not windows:
        sys.exit(f"there are no records of {WINDOW_S:g} s after the return")
    for rate, when in ((before, "before the loss"), (without, "without the host"), (windows[-1][1], "afterwards")):
        if rate <= 0:
            sys.exit(f"nothing was collected {when}")
    back = [begin - since for begin, rate in windows if rate >= BACK * before]
    return Return(before, without, windows[-1][1], workers_s, back[0] if back else None)


def _windows(records: Records) -> list[tuple[float, float]]:
    """Return the begin and the rate of the shortest window of at least `WINDOW_S` from each record on."""
    found = []
    for number, first in enumerate(records):
        long = [last for last in records[number:] if last["elapsed_s"] >= first["elapsed_s"] + WINDOW_S]
        if long:
            found.append((first["elapsed_s"], rate_between(records, first["elapsed_s"], long[0]["elapsed_s"])))
    return found


def rate_between(records: Records, begin: float, end: float) -> float:
    """Return the environment steps a second from the record at `begin` to the one at `end`, in seconds of the run."""
    steps = {record["elapsed_s"]: record["env_steps"] for record in records}
    return float(steps[end] - steps[begin]) / (end - begin)
