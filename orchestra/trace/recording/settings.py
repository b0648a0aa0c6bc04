"""How a run is recorded: the flags, as a value, and the recorders that they make."""

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
    """What of a run is recorded."""

    TAKE_VALUES: ClassVar[frozenset[str]] = frozenset(
        {"--trace", "--trace-include", "--trace-exclude", "--trace-flight-mib"}
    )
    """The flags that are followed by a value."""

    mode: Mode = "flight"
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    flight_bytes: int = FLIGHT_BYTES
    at_end: bool = False
    """Whether flight records are written also when nothing failed."""

    @staticmethod
    def add_to(parser: argparse.ArgumentParser) -> None:
        """Add the flags to `parser`."""
        group = parser.add_argument_group("recording")
        group.add_argument(
            "--trace",
            choices=get_args(Mode),
            default="flight",
            help="what is recorded of messages: nothing; the last of each node, written when an actor fails or on "
            "SIGUSR2; everything, but of arrays only a digest; everything (default: flight)",
        )
        group.add_argument(
            "--trace-include",
            action="append",
            default=[],
            metavar="PATTERN",
            help="record only actors, or the fields only of message types, that match: 'worker-*/worker', 'Load*'; "
            "may be given several times",
        )
        group.add_argument(
            "--trace-exclude",
            action="append",
            default=[],
            metavar="PATTERN",
            help="leave these out; as --trace-include",
        )
        group.add_argument(
            "--trace-flight-mib",
            type=int,
            default=FLIGHT_BYTES // MIB,
            metavar="N",
            help=f"what a flight recorder keeps, in MiB for each node (default: {FLIGHT_BYTES // MIB})",
        )
        group.add_argument("--trace-at-end", action="store_true", help="write the flight records at the end as well")

    @classmethod
    def of(cls, options: argparse.Namespace) -> Self:
        """Return what the flags say.

        Raises:
            UsageError: they contradict each other.
        """
        if options.trace_flight_mib < 1:
            raise UsageError(f"--trace-flight-mib: {options.trace_flight_mib} is not allowed: it must be 1 or more")
        if options.trace_at_end and options.trace != "flight":
            raise UsageError(f"--trace-at-end is for --trace flight; --trace {options.trace} was given")
        if options.trace == "off" and (options.trace_include or options.trace_exclude):
            raise UsageError("--trace off records nothing, so --trace-include and --trace-exclude have no meaning")
        return cls(
            options.trace,
            tuple(options.trace_include),
            tuple(options.trace_exclude),
            options.trace_flight_mib * MIB,
            options.trace_at_end,
        )

    def to_argv(self) -> list[str]:
        """Return the flags that say the same: what a launched process is told."""
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
        """Return the recorder of one node process, or None where nothing is recorded.

        Args:
            node: the node's name.
            folder: where its files go.
            clock: the node's.
            seed: the run's.
            inline: whether the node runs offloaded work on its loop.
            planned: the addresses of the actors that the experiment plans there.
            experiment: what the run was started from.
            run_directory: where the run keeps its files, as the node tells its actors.
            resumes: what its actors go on from, if they do.
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
            told = replace(header, reason=reason)
            return TraceWriter(folder, stem, told, RecordEncoder(filters), clock=clock, values=True)

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
            continue  # run from a source tree, or without that library
    return found
