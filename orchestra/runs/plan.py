"""Plans a run: checks all that can be checked, and lays out its topology. Nothing is started or written."""

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, ParamSpec, cast

from pydantic import Field

from orchestra.errors import UsageError
from orchestra.hosts.open_files import check_open_files
from orchestra.hosts.run_plan import RunPlan
from orchestra.runs.experiment import (
    NAME,
    build,
    experiment_flags,
    find_experiment,
    importing,
    load_experiment,
    recorded_experiment,
    recorded_options,
    source_of,
)
from orchestra.runs.flags import Flags
from orchestra.runs.run_directory import HIDDEN, RunDirectory
from orchestra.runs.topology import Topology
from orchestra.trace.format.records import Mode
from orchestra.trace.recording.settings import MIB, TraceSettings
from orchestra.wire.blocks import CAPACITY
from orchestra.wire.credentials import TLS_DIR_VARIABLE, Credentials, folder_of_environment
from orchestra.wire.transports.memory import MemoryTransport
from orchestra.wire.transports.registry import is_exposed, transport_for

P = ParamSpec("P")
Experiment = str | Path | Callable[..., Topology] | Topology
"""The path of an experiment's file, a function that returns a topology, or a topology."""

LISTEN = "tcp://127.0.0.1:0"
MIB_VARIABLE = "ORCHESTRA_SHARED_MEMORY"
MOST_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run that was checked, and of which nothing exists yet."""

    topology: Topology
    launch: RunPlan
    """Complete but for `run_directory` and `resume_from`."""
    values: dict[str, Any]
    """The values of the experiment's flags."""
    listen: str | None
    """The address at which the other processes reach this one; None if all nodes run in this process."""
    runs_dir: Path
    resumed: RunDirectory | None
    command: Sequence[str]
    """The equivalent command line."""
    options: dict[str, Any] = field(default_factory=dict)
    """The options of every run as they take effect, from which a resumed run goes on."""


_NOT_WITH: dict[Mode, Sequence[str]] = {
    "off": ("trace_include", "trace_exclude", "trace_at_end"),
    "digest": ("trace_at_end",),
    "full": ("trace_at_end",),
}
"""Recorded options that a mode of recording, given to a resumed run, does not allow."""


def _resumable(make: Callable[P, PlannedRun]) -> Callable[P, PlannedRun]:
    """Return `make` for which an option that is not given to a resumed run keeps the value that the run had."""

    @functools.wraps(make)
    def planned(*args: P.args, **keywords: P.kwargs) -> PlannedRun:
        recorded: dict[str, Any] = {}
        if (resume := cast("Path | None", keywords.get("resume"))) is not None:
            for option, given in (("FILE", args[0] if args else None), ("--seed", keywords.get("seed"))):
                if given is not None:
                    raise UsageError(
                        f"{option} cannot be combined with --resume: a resumed run keeps its original value"
                    )
            recorded = recorded_options(RunDirectory.open(resume), OPTIONS)
            for name in _NOT_WITH.get(cast("Mode", keywords.get("trace", recorded.get("trace"))), ()):
                recorded.pop(name, None)
        run = make(*args, **cast("Any", {**recorded, **keywords}))
        values = {**OPTIONS.defaults, **recorded, **keywords}
        effective = {
            "seed": run.launch.seed,
            "tls_dir": run.launch.tls_dir,
            "shared_memory": run.launch.shared_memory // MIB,
        }
        options = {flag.name: values[flag.name] for flag in OPTIONS if flag.name != "resume"}
        return replace(run, options=options | effective)

    return planned


@_resumable
def plan(
    experiment: Experiment | None = None,
    /,
    *,
    seed: Annotated[int | None, Field(ge=0, description="decides every random number of the run; 0 by default")] = None,
    resume: Annotated[
        Path | None,
        Field(description="continue the run of this directory, in place of FILE; flags that are given replace its own"),
    ] = None,
    runs_dir: Annotated[Path, Field(description="the folder of all run directories")] = Path("runs"),
    single_process: Annotated[
        bool, Field(description="run all nodes in this process; equal seeds then give equal runs, bit for bit")
    ] = False,
    listen: Annotated[
        str, Field(description="where other processes reach this one: tcp://HOST:PORT, tls://HOST:PORT, unix:///PATH")
    ] = LISTEN,
    tls_dir: Annotated[
        Path | None,
        Field(
            description="the folder of ca.pem, cert.pem and key.pem (mode 0600), for --listen tls://HOST:PORT; by "
            f"default the one that {TLS_DIR_VARIABLE} names"
        ),
    ] = None,
    tls: Annotated[
        Literal["required", "off"],
        Field(description="off allows --listen tcp://HOST:PORT beyond this host, which others can read and change"),
    ] = "required",
    shared_memory: Annotated[
        int | None,
        Field(
            ge=0,
            le=MOST_MIB,
            description="MiB of an arena of shared memory, at most one for each peer of a process; 0 for none; by "
            f"default as {MIB_VARIABLE} says, else {CAPACITY >> 20}",
        ),
    ] = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Field(description="the lowest level that goes into the logs")
    ] = "info",
    quiet: Annotated[bool, Field(description="print neither progress nor warnings; the logs have them")] = False,
    trace: Annotated[
        Mode,
        Field(
            description="what to record: nothing; the newest records of each node, written when an actor fails or on "
            "SIGUSR2; all records, large arrays by digest; all records with every array"
        ),
    ] = "flight",
    trace_include: Annotated[
        tuple[str, ...],
        Field(
            description="record only matching actors ('worker-*/worker'), or the fields of matching message types only "
            "('Load*'); may be repeated"
        ),
    ] = (),
    trace_exclude: Annotated[
        tuple[str, ...], Field(description="leave out matching actors, or the fields of matching message types")
    ] = (),
    trace_flight_mib: Annotated[int, Field(description="memory of a node's flight recorder, in MiB")] = 64,
    trace_at_end: Annotated[
        bool, Field(description="write flight records at the end of a run without failures, too")
    ] = False,
    **flags: Any,
) -> PlannedRun:
    """Check everything that can be checked of a run before it begins. The options are of the types of their flags."""
    if (importer := importing.get()) is not None:
        raise UsageError(
            f"a run is started while {str(importer)!r} is imported as an experiment; put the call under "
            '`if __name__ == "__main__":`'
        )
    trace_settings = TraceSettings(trace, trace_include, trace_exclude, trace_flight_mib * MIB, trace_at_end)
    resumed = None
    if resume is not None:
        resumed = RunDirectory.open(resume)
        resumed.newest_state()
    topology, values, words, source = _laid_out(experiment, resumed, flags, importable=not single_process)
    topology.main_actor()  # or say that there is none, before anything is made
    in_one_process = single_process or source is None or len(topology.nodes) == 1
    if source is None and listen != LISTEN:
        raise UsageError(
            "--listen: no other process can import this experiment, so all its nodes run in this one; write it as the "
            "function `experiment` of a file to use several"
        )
    check_open_files(0 if in_one_process else len(topology.nodes) - 1)
    tls_dir = tls_dir.absolute() if tls_dir is not None else folder_of_environment()
    transport = transport_for(listen, None if tls_dir is None else Credentials.of_folder(tls_dir))
    if not in_one_process and isinstance(transport, MemoryTransport):
        raise UsageError(f"--listen: no other process reaches {listen}; write tcp://HOST:PORT or unix:///PATH")
    transport.check(listen)
    if is_exposed(listen) and tls != "off":
        raise UsageError(
            f"--listen: {listen} is plain TCP beyond this host: others could read the run and inject messages; "
            "write tls://HOST:PORT with --tls-dir, or add --tls off"
        )
    own_file, own_function = source or (None, NAME)
    return PlannedRun(
        topology=topology,
        launch=RunPlan(
            experiment=None if own_file is None else own_file.absolute(),
            flags=words,
            seed=seed or 0,
            run_directory=Path(),
            function=own_function,
            log_level=log_level,
            quiet=quiet,
            trace=trace_settings,
            tls_dir=tls_dir if listen.startswith("tls://") else None,
            shared_memory=_shared_memory_bytes(shared_memory),
            unencrypted=tls == "off",
        ),
        values=values,
        listen=None if in_one_process else listen,
        runs_dir=runs_dir,
        resumed=resumed,
        command=["orchestra", "run", *([] if own_file is None else [str(own_file)]), *words, f"--seed={seed or 0}"],
    )


OPTIONS = Flags.of(plan, keywords_alone=True)
"""The options of every run: keywords of `run`, and flags of `orchestra run`."""


def _laid_out(
    experiment: Experiment | None, resumed: RunDirectory | None, flags: dict[str, Any], *, importable: bool
) -> tuple[Topology, dict[str, Any], Sequence[str], tuple[Path, str] | None]:
    """Return the topology, the values of the experiment's flags, the same as words, and where to import it from."""
    source: tuple[Path, str] | None
    if isinstance(experiment, Topology):
        if flags:
            raise UsageError(f"a Topology has no flags, but got {', '.join(flags)}")
        return experiment, {}, (), None
    if callable(experiment):
        function, source = experiment, source_of(experiment)
    else:
        if resumed is not None:
            file, name, earlier = recorded_experiment(resumed)
            source, flags = (file, name), earlier | flags
            if hidden := [name for name, value in flags.items() if value == HIDDEN]:
                raise UsageError(
                    f"--{hidden[0].replace('_', '-')}: a secret is not recorded in a run directory; give it again"
                )
        elif isinstance(experiment, str | Path):
            source = find_experiment(Path(experiment)), NAME
        else:
            raise UsageError(
                f"cannot run {experiment!r}: an experiment is the path of a file, a function that returns a Topology, "
                "or a Topology"
            )
        function = load_experiment(*source)
    known = experiment_flags(function)
    if taken := [flag for flag in known if flag.name in OPTIONS.defaults]:
        raise UsageError(f"parameter {taken[0].name!r} makes the flag {taken[0].option}, which every run has")
    values = known.validated(flags)
    topology = build(function, values)
    words = known.to_argv(values)
    if source is not None and importable and len(topology.nodes) > 1:
        # As the other processes will import it: a message of another module would be another message to them.
        topology = build(load_experiment(*source), values)
    if resumed is not None:
        _rescale(topology, resumed)
    return topology, values, words, source


def _rescale(topology: Topology, resumed: RunDirectory) -> None:
    """Give a resumed run the replicas that `orchestra scale` left it, unless a flag asks for another number now."""
    for name, (planned, now) in resumed.read_replicas().items():
        group = topology.groups.get(name)
        if group is not None and group.planned == planned:
            topology.scale(name, max(now, group.at_least))


def _shared_memory_bytes(mib: int | None) -> int:
    """Return how many bytes an arena of shared memory has, as given, as the environment says, or by default.

    Raises:
        UsageError: the environment variable is no such number.
    """
    text = os.environ.get(MIB_VARIABLE, "")
    if mib is None and text:
        if not text.isascii() or not text.isdecimal() or len(text) > 7 or int(text) > MOST_MIB:
            raise UsageError(f"{MIB_VARIABLE} is {text!r}: it must be a number of MiB from 0, for none, to {MOST_MIB}")
        mib = int(text)
    return CAPACITY if mib is None else mib << 20
