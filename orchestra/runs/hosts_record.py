"""`hosts.json`: the hosts of a run, what they have played, and which of them came and went, when and why."""

import json
from collections import deque
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orchestra import log
from orchestra.clock import Clock, TimerHandle
from orchestra.hosts.shape import HostShape
from orchestra.runs.host_figures import HostFigures
from orchestra.runs.run_directory import RunDirectory
from orchestra.runs.whole_files import write_json

MOST_EVENTS = 10_000
"""Events that are kept; the oldest are dropped."""
SOON_S = 0.5
"""Seconds after a change until it is written, together with those that follow it."""
FIGURES_S = 2.0
"""The same for a change of what hosts have played."""


class HostsRecord:
    """Keeps `hosts.json`. A run that is resumed goes on with the events of the run before.

    Args:
        run_directory: of the run; None to keep no file.
        clock: gives the times.
    """

    def __init__(self, run_directory: Path | None, clock: Clock) -> None:
        self.clock = clock
        self._path = None if run_directory is None else RunDirectory(run_directory).hosts
        self._timer: TimerHandle | None = None
        self._due = 0.0
        self._hosts: dict[int, dict[str, Any]] = {}
        self._figures: dict[int, HostFigures] = {}
        self._events: deque[dict[str, Any]] = deque(self._earlier(), maxlen=MOST_EVENTS)

    def changed(self, shape: HostShape, state: str, *, where: str = "", reason: str = "") -> None:
        """Write down that a host is in another state.

        Args:
            shape: of the host, as far as it is known.
            state: `asked`, `queued`, `started`, `joined`, `playing`, `leaving`, `left` or `gone`.
            where: the engine's description of the host.
            reason: why, in words.
        """
        self._hosts[shape.slot] = {**asdict(shape), "state": state, "where": where}
        at = self.clock.now().isoformat()
        self._events.append({"at": at, "slot": shape.slot, "host": shape.name, "state": state, "reason": reason})
        self._write_within(SOON_S)  # many hosts may come at once

    def played(self, shape: HostShape, figures: HostFigures) -> None:
        """Write down what a host has played. `figures` is kept, and changes with what the host plays."""
        self._hosts.setdefault(shape.slot, {**asdict(shape), "state": "playing", "where": ""})
        self._figures[shape.slot] = figures
        self._write_within(FIGURES_S)

    def write(self) -> None:
        """Write the file now, if anything has changed since it was written."""
        if self._path is None or self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        hosts = [self._hosts[slot] | self._played_by(slot) for slot in sorted(self._hosts)]
        try:
            write_json(self._path, {"hosts": hosts, "events": list(self._events)})
        except OSError as error:
            log.get(actor="run").warning("cannot write the record of hosts", path=str(self._path), error=repr(error))

    def _write_within(self, seconds: float) -> None:
        if self._path is None:
            return
        due = self.clock.monotonic() + seconds
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._timer, self._due = self.clock.call_later(seconds, self.write), due

    def _played_by(self, slot: int) -> dict[str, Any]:
        """Return what a host has played; nothing of one that has not."""
        figures = self._figures.get(slot)
        if figures is None:
            return {}
        rate = round(figures.per_s(self.clock.monotonic()), 1)
        return {"env_steps": figures.env_steps, "env_steps_per_s": rate, "policy_lag": figures.policy_lag}

    def _earlier(self) -> list[dict[str, Any]]:
        if self._path is None:
            return []
        try:
            return list(json.loads(self._path.read_bytes())["events"])
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.get(actor="run").warning("cannot read the record of hosts", path=str(self._path), error=repr(error))
            return []
