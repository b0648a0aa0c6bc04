"""The settings of recording: the `--trace` flags as a value, and the recorders made from them."""

import argparse
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import ClassVar, Self, get_args

from orchestra.clock import Clock
from orchestra.errors import UsageError
from orchestra.trace.format.encoding import Filters, RecordEncoder
from orchestra.trace.format.layout import VERSION
from orchestra.trace.format.records import Experiment, Header, Mode
from orchestra.trace.format.writer import TraceWriter
from orchestra.trace.recording.backlog import Backlog
from orchestra.trace.recording.flight import FLIGHT_BYTES, FlightRing
from orchestra.trace.recording.recorder import Recorder, Sink

MIB = 1 << 20
_DISTRIBUTIONS = {"orchestra": "orchestra-rl", "numpy": "numpy", "torch": "torch"}


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """What a run records."""

    TAKE_VALUES: ClassVar[frozenset[str]] = frozenset(
        {"--trace", "--trace-include", "--trace-exclude", "--trace-flight-mib"}
    )
    """The flags that take a value."""

    mode: Mode = "flight"
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    flight_bytes: int = FLIGHT_BYTES
    at_end: bool = False
    """Whether flight records are written also without a failure."""

    @staticmethod
    def add_to(parser: argparse.ArgumentParser) -> None:
        """Add the flags to `parser`."""
        group = parser.add_argument_group("recording")
        group.add_argument(
            "--trace",
            choices=get_args(Mode),
            default="flight",
            help="what to record: nothing; the newest records of each node, written when an actor fails or on SIGUSR2; "
            "all records, large arrays by digest; all records with every array (default: flight)",
        )
        group.add_argument(
            "--trace-include",
            action="append",
            default=[],
            metavar="PATTERN",
            help="record only matching actors ('worker-*/worker'), or the fields of matching message types only "
            "('Load*'); may be repeated",
        )
        group.add_argument(
            "--trace-exclude",
            action="append",
            default=[],
            metavar="PATTERN",
            help="leave out matching actors, or the fields of matching message types; may be repeated",
        )
        group.add_argument(
            "--trace-flight-mib",
            type=int,
            default=FLIGHT_BYTES // MIB,
            metavar="N",
            help=f"memory of a node's flight recorder, in MiB (default: {FLIGHT_BYTES // MIB})",
        )
        group.add_argument(
            "--trace-at-end",
            action="store_true",
            help="write flight records also at the end of a run without failures",
        )

    @classmethod
    def of(cls, options: argparse.Namespace) -> Self:
        """Return the settings in parsed flags.

        Raises:
            UsageError: the flags contradict each other.
        """
        if options.trace_flight_mib < 1:
            raise UsageError(f"--trace-flight-mib: {options.trace_flight_mib} is not allowed; it must be 1 or more")
        if options.trace_at_end and options.trace != "flight":
            raise UsageError(f"--trace-at-end requires --trace flight; got --trace {options.trace}")
        if options.trace == "off" and (options.trace_include or options.trace_exclude):
            raise UsageError(
                "--trace off records nothing; it cannot be combined with --trace-include or --trace-exclude"
            )
        return cls(
            options.trace,
            tuple(options.trace_include),
            tuple(options.trace_exclude),
            options.trace_flight_mib * MIB,
            options.trace_at_end,
        )

    def to_argv(self) -> list[str]:
        """Return the flags of these settings, for a launched process."""
        words = [f"--trace={self.mode}", f"--trace-flight-mib={self.flight_bytes // MIB}"]
        words += [f"--trace-include={pattern}" for pattern in self.include]
        words += [f"--trace-exclude={pattern}" for pattern in self.exclude]
        return [*words, *(["--trace-at-end"] if self.at_end else [])]

    def recorder(
        self,
        node: str,
        folder: Path,
        *,
        clock: Clock,
        seed: int,
        deterministic: bool = False,
        planned: frozenset[str] = frozenset(),
        experiment: Experiment | None = None,
        run_directory: Path | None = None,
        resume_from: Path | None = None,
    ) -> Recorder | None:
        """Return the recorder of one node process, or None for mode `off`.

        Args:
            node: the node's name.
            folder: the folder of its trace files.
            clock: the node's clock.
            seed: the run's seed.
            deterministic: whether the node runs offloaded work on its loop.
            planned: addresses of the actors that the experiment plans on this node.
            experiment: the experiment that the run was started from.
            run_directory: the run directory, as the node's actors see it.
            resume_from: the run state that the run was resumed from.
        """
        if self.mode == "off":
            return None
        generation = int(clock.now().timestamp())
        while any(folder.glob(f"{node}.{generation}.*")):
            generation += 1
        header = Header(
            node=node,
            generation=generation,
            segment=0,
            mode=self.mode,
            wall=0.0,
            monotonic=0.0,
            seed=seed,
            deterministic=deterministic,
            pid=os.getpid(),
            host=socket.gethostname(),
            versions=_versions(),
            experiment=experiment,
            reason="recorded",
            run_directory="" if run_directory is None else str(run_directory),
            resume_from="" if resume_from is None else str(resume_from),
        )
        filters = Filters(self.include, self.exclude)

        def flight_writer(number: int, reason: str) -> TraceWriter:
            stem = f"{node}.{generation}.flight-{number}"
            own = replace(header, reason=reason)
            return TraceWriter(folder, stem, own, RecordEncoder(filters), clock=clock, values=True)

        sink: Sink
        if self.mode == "flight":
            sink = FlightRing(flight_writer, limit=self.flight_bytes, at_end=self.at_end)
        else:
            values = self.mode == "full"
            sink = Backlog(
                TraceWriter(folder, f"{node}.{generation}", header, RecordEncoder(filters), clock=clock, values=values),
            )
        return Recorder(sink, generation=generation, clock=clock, planned=planned, filters=filters)


NO_TRACE = TraceSettings(mode="off")


def _versions() -> dict[str, str]:
    found = {"trace": str(VERSION), "python": ".".join(map(str, sys.version_info[:3]))}
    for name, distribution in _DISTRIBUTIONS.items():
        try:
            found[name] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue  # a source tree that is not installed, or a missing library
    return found
