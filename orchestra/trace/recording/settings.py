"""The settings of recording: the `--trace` flags as a value, and the recorders made from them."""

import glob
import os
import re
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from orchestra.clock import Clock
from orchestra.errors import UsageError
from orchestra.trace.format.encoding import Filters, RecordEncoder
from orchestra.trace.format.layout import VERSION
from orchestra.trace.format.records import Experiment, Header, Mode
from orchestra.trace.recording.recorder import FLIGHT_BYTES, SMALL_FLIGHT_BYTES, NodeRecorder, Sink

MIB = 1 << 20
_DISTRIBUTIONS = {"orchestra": "orchestra-rl", "numpy": "numpy", "torch": "torch"}


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """The settings of the recording of a run.

    Raises:
        UsageError: the settings contradict each other.
    """

    mode: Mode = "flight"
    include: Sequence[str] = ()
    """As in `Filters`."""
    exclude: Sequence[str] = ()
    flight_bytes: int | None = None
    """Memory of a node's flight recorder; by default that of `FLIGHT_BYTES` or `SMALL_FLIGHT_BYTES`."""
    at_end: bool = False
    """True if flight records are written also without a failure."""

    def __post_init__(self) -> None:
        if self.flight_bytes is not None and self.flight_bytes < 1:  # the flag counts whole MiB; a test may keep less
            raise UsageError(f"--trace-flight-mib: {self.flight_bytes // MIB} is not allowed; it must be 1 or more")
        if self.at_end and self.mode != "flight":
            raise UsageError(f"--trace-at-end requires --trace flight; got --trace {self.mode}")
        if self.mode == "off" and (self.include or self.exclude):
            raise UsageError(
                "--trace off records nothing; it cannot be combined with --trace-include or --trace-exclude"
            )

    def recorder(
        self,
        node: str,
        folder: Path,
        *,
        clock: Clock,
        seed: int,
        deterministic: bool = False,
        planned: frozenset[str] = frozenset(),
        root: bool = True,
        experiment: Experiment | None = None,
        run_directory: Path | None = None,
        resume_from: Path | None = None,
    ) -> NodeRecorder | None:
        """Return the recorder of one node process, or None for mode `off`.

        Args:
            node: the node's name.
            folder: the folder of its trace files.
            clock: the node's clock.
            seed: the run's seed.
            deterministic: whether the node runs offloaded work on its loop.
            planned: addresses of the actors that the experiment plans on this node.
            root: whether it is the root of the run, which has the memory for a larger flight recorder.
            experiment: the experiment that the run was started from.
            run_directory: the run directory, as the node's actors see it.
            resume_from: the run state that the run was resumed from.
        """
        if self.mode == "off":
            return None
        # The agent of a host has settings for its nodes, and records nothing itself.
        from orchestra.trace.format.shared_arrays import SharedArrays
        from orchestra.trace.format.writer import TraceWriter
        from orchestra.trace.recording.backlog import Backlog
        from orchestra.trace.recording.flight import FlightRing

        generation = _next_generation(folder, node, int(clock.now().timestamp()))
        header = Header(
            node=node,
            generation=generation,
            mode=self.mode,
            seed=seed,
            deterministic=deterministic,
            pid=os.getpid(),
            host=socket.gethostname(),
            versions=versions(),
            experiment=experiment,
            run_directory="" if run_directory is None else str(run_directory),
            resume_from="" if resume_from is None else str(resume_from),
        )
        filters = Filters(self.include, self.exclude)

        def writer(suffix: str, reason: str) -> TraceWriter:
            own, values = replace(header, reason=reason), self.mode != "digest"
            stem = f"{node}.{generation}{suffix}"
            # A flight record stands alone: it is written after a failure, and may be all that is kept of a run.
            shared = SharedArrays(folder, remove=root) if self.mode == "full" else None
            return TraceWriter(folder, stem, own, RecordEncoder(filters), clock=clock, values=values, shared=shared)

        sink: Sink
        if self.mode == "flight":
            at_end = self.at_end
            limit = self.flight_bytes or (FLIGHT_BYTES if root else SMALL_FLIGHT_BYTES)
            sink = FlightRing(lambda number, why: writer(f".flight-{number}", why), limit=limit, at_end=at_end)
        else:
            sink = Backlog(writer("", header.reason))
        return NodeRecorder(sink, generation=generation, clock=clock, planned=planned, filters=filters)


NO_TRACE = TraceSettings(mode="off")


def _next_generation(folder: Path, node: str, now: int) -> int:
    """Return `now`, or what follows the generation of the node's last process there: the clock may have been set."""
    named = re.compile(rf"{re.escape(node)}\.(\d+)\..*")
    matches = (named.fullmatch(path.name) for path in folder.glob(f"{glob.escape(node)}.*"))
    return max([now, *(int(match[1]) + 1 for match in matches if match)])


def versions() -> dict[str, str]:
    """Return the versions of the trace format, of Python and of the installed packages that results depend on."""
    found = {"trace": str(VERSION), "python": ".".join(map(str, sys.version_info[:3]))}
    for name, distribution in _DISTRIBUTIONS.items():
        try:
            found[name] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue  # a source tree that is not installed, or a missing library
    return found
