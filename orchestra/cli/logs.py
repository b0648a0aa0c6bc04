"""`orchestra logs`: print what all nodes and hosts of a run have logged, in the order of the head's clock."""

import json
import re
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from orchestra import log
from orchestra.cli.ps import add_run_to
from orchestra.errors import UsageError
from orchestra.runs.appended_lines import AppendedLines
from orchestra.runs.flag_parser import FlagParser
from orchestra.runs.run_directory import RunDirectory

POLL_S = 0.5
"""Seconds between two looks at the files, with `--follow`."""
_PRINTED = re.compile(r"(\S+) (\S+) (.*)", re.DOTALL)

Entry = tuple[datetime, str]
"""A time, and a line to print."""


def command(arguments: list[str]) -> int:
    """Print the logs of all nodes of a run, in order."""
    parser = FlagParser(
        prog="orchestra logs",
        description="Print what all nodes of a run have logged, and what the processes of other hosts have printed, in "
        "the order of the head's clock.",
    )
    add_run_to(parser, default="the newest")
    parser.add_argument("--host", metavar="K", help="only what happened on this host: its slot, or its name")
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what is written later, until Ctrl-C")
    options = parser.parse_strictly(arguments)
    run = RunDirectory.newest(options.runs_dir) if options.run is None else RunDirectory.open(options.run)
    merged = _Merged(run, options.host)
    merged.show()
    while options.follow:
        time.sleep(POLL_S)
        merged.show()
    return 0


class _Merged:
    """The files of a run's logs.

    Raises:
        UsageError: the run has no such host.
    """

    def __init__(self, run: RunDirectory, host: str | None) -> None:
        self._run = run
        self._slot = None if host is None else _slot_of(run, host)
        self._read: dict[Path, AppendedLines] = {}

    def show(self) -> None:
        """Print the lines that were added, in order."""
        entries = [entry for path in self._files() for entry in self._added(path)]
        for _, text in sorted(entries, key=lambda entry: entry[0]):
            print(text, flush=True)

    def _files(self) -> list[Path]:
        """Return the files of the selected host, or of all hosts."""
        logs = self._run.logs
        nodes, hosts = sorted(logs.glob("*.jsonl")), sorted(logs.glob("hosts/*.log"))
        if self._slot is None:
            return nodes + hosts
        placement = self._run.config().get("placement") or {}
        nodes = [path for path in nodes if placement.get(path.stem, 0) == self._slot]
        return nodes + [path for path in hosts if path.name.startswith(f"{self._slot}-")]

    def _added(self, path: Path) -> Iterator[Entry]:
        """Yield the entries that a file has got since the last look."""
        for line in self._read.setdefault(path, AppendedLines(path)).new():
            if (entry := _logged(line) if path.suffix == ".jsonl" else _printed(line)) is not None:
                yield entry


def _logged(line: str) -> Entry | None:
    """Return the entry of a line of a node's log; None if it is damaged."""
    try:
        record = json.loads(line)
        return datetime.fromisoformat(record["timestamp"]), log.short(record)
    except (ValueError, TypeError, KeyError):
        return None


def _printed(line: str) -> Entry | None:
    """Return the entry of a line that a process has printed; None if it is damaged."""
    if (found := _PRINTED.fullmatch(line)) is None:
        return None
    try:
        at = datetime.fromisoformat(found[1])
    except ValueError:
        return None
    return at, f"{at:%H:%M:%S} {found[2]}  {found[3]}"


def _slot_of(run: RunDirectory, host: str) -> int:
    """Return the slot of a host that is named by its slot or its name.

    Raises:
        UsageError: the run has no such host.
    """
    known = {0: "head"} | dict(_hosts(run.config().get("hosts") or ()))
    for slot, name in known.items():
        if host in (str(slot), name):
            return slot
    named = ", ".join(f"{slot} ({name})" for slot, name in known.items())
    raise UsageError(f"--host: {str(run.path)!r} has no host {host!r}; its hosts are {named}")


def _hosts(hosts: Sequence[object]) -> Iterator[tuple[int, str]]:
    for shape in hosts:
        if isinstance(shape, dict) and "slot" in shape:
            yield int(shape["slot"]), str(shape.get("name") or f"slot {shape['slot']}")
