"""Plans a run: checks all that can be checked, and lays out its topology. Nothing is started or written."""

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, ParamSpec, cast

from pydantic import Field

from orchestra.errors import UsageError
from orchestra.hosts.certificates import check_cryptography
from orchestra.hosts.open_files import check_open_files
from orchestra.hosts.run_plan import RunPlan
from orchestra.hosts.shape import Hosts, one_core, this_machine
from orchestra.runs.experiment import NAME, importing, recorded_options
from orchestra.runs.flags import Flags
from orchestra.runs.head_addresses import head_address
from orchestra.runs.hosts_file import is_hosts_file
from orchestra.runs.hosts_options import HOST_ANNOTATIONS, HOST_FLAGS, HOST_PARAMETERS, HostsOptions, hosts_options
from orchestra.runs.layout import Experiment, Layout, layout_of
from orchestra.runs.placement import check_edges, place
from orchestra.runs.resumption import check_run_name, named_run
from orchestra.runs.run_directory import RunDirectory
from orchestra.runs.topology import Topology
from orchestra.trace.format.records import Mode
from orchestra.trace.recording.settings import MIB, TraceSettings
from orchestra.wire.blocks import CAPACITY
from orchestra.wire.credentials import TLS_DIR_VARIABLE, Credentials, folder_of_environment
from orchestra.wire.transports.memory import MemoryTransport
from orchestra.wire.transports.registry import is_exposed, transport_for

P = ParamSpec("P")
LISTEN = "tcp://127.0.0.1:0"
MIB_VARIABLE = "ORCHESTRA_SHARED_MEMORY"
MOST_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A checked run, before anything of it is started or written."""

    topology: Topology
    launch: RunPlan
    """Complete but for `run_directory` and `resume_from`."""
    layout: Layout
    """The experiment and the values of its flags."""
    name: str | None
    """The name of its directory; None for one of time and seed."""
    hosts: HostsOptions | None
    """The options for several hosts; None on one machine."""
    shapes: Hosts
    """The hosts for which the topology was built."""
    placement: dict[str, int]
    """The slot of each node."""
    listen: str | None
    """The address at which the other processes reach this one; None if all nodes run in this process."""
    runs_dir: Path
    resumed: RunDirectory | None
    command: Sequence[str]
    """The equivalent command line."""
    options: dict[str, Any] = field(default_factory=dict)
    """The options of every run as they take effect, from which a resumed run goes on."""

    def over(self, shapes: Hosts) -> "PlannedRun":
        """Return the run over hosts that have reported their shapes.

        Raises:
            UsageError: it cannot be laid out over them, or they lack what its nodes need.
        """
        topology = self.layout.topology(shapes)
        placement = place(topology, shapes)
        _check_edges(topology, shapes, self.hosts)
        launch = replace(self.launch, hosts=shapes)
        return replace(self, topology=topology, launch=launch, shapes=shapes, placement=placement)


_NOT_WITH: dict[Mode, Sequence[str]] = {
    "off": ("trace_include", "trace_exclude", "trace_at_end"),
    "digest": ("trace_at_end",),
    "full": ("trace_at_end",),
}
"""Recorded options that a mode of recording, given to a resumed run, does not allow."""


def _resumable(make: Callable[P, PlannedRun]) -> Callable[P, PlannedRun]:
    """Return `make` for which an option that is not given to a resumed run keeps the value that the run had."""

    @functools.wraps(make)
    def checked(*args: P.args, **keywords: P.kwargs) -> PlannedRun:
        given_options = {
            "FILE": args[0] if args else None,
            "--seed": keywords.get("seed"),
            "--as": keywords.get("as_"),
        }
        for option, given in given_options.items():
            if given is not None and keywords.get("resume") is not None:
                raise UsageError(f"{option} cannot be combined with --resume: a resumed run keeps its original value")
        return planned(*args, **keywords)

    def planned(*args: P.args, **keywords: P.kwargs) -> PlannedRun:
        recorded: dict[str, Any] = {}
        if (resume := cast("Path | None", keywords.get("resume"))) is not None:
            recorded = recorded_options(RunDirectory.open(resume), OPTIONS)
            for name in _NOT_WITH.get(cast("Mode", keywords.get("trace", recorded.get("trace"))), ()):
                recorded.pop(name, None)
            for name in _outdated_host_flags(keywords, recorded):
                del recorded[name]
        run = make(*args, **cast("Any", {**recorded, **keywords}))
        if run.name is not None and resume is None:
            check_run_name(run.name)
        elsewhere = run.hosts is not None and run.hosts.head_elsewhere  # there, the head looks for the run
        if run.name is not None and resume is None and not elsewhere:
            seed = cast("int | None", keywords.get("seed"))
            found = named_run(run.runs_dir, run.topology, run.name, run.launch.experiment, seed)
            if found is not None:
                mine = {name: value for name, value in keywords.items() if name not in ("as_", "seed", "runs_dir")}
                return cast("PlannedRun", cast("Any", planned)(run.launch.experiment, **mine, resume=found))
        values = {**OPTIONS.defaults, **recorded, **keywords}
        effective: dict[str, Any] = {
            "seed": run.launch.seed,
            "tls_dir": run.launch.tls_dir,
            "shared_memory": run.launch.shared_memory // MIB,
        }
        if values["hosts"] is not None and is_hosts_file(values["hosts"]):
            effective["hosts"] = str(Path(values["hosts"]).absolute())
        options = {flag.name: values[flag.name] for flag in OPTIONS if flag.name not in ("resume", "as_")}
        return replace(run, options=options | effective)

    return checked


def _outdated_host_flags(given: Mapping[str, Any], recorded: Mapping[str, Any]) -> list[str]:
    """Return the recorded flags of several hosts that do not hold for a resumed run with the flags `given`."""
    alone = given.get("single_process") or ("hosts" in given and given["hosts"] is None)
    other = ("hosts", "launch", "min_hosts", "max_hosts") if "hosts" in given else ()
    return [
        flag.name
        for flag in HOST_FLAGS
        if flag.name in recorded and (alone or flag.name in other or not recorded[flag.name])
    ]


def _with_host_flags(make: Callable[P, PlannedRun]) -> Callable[P, PlannedRun]:
    """Give `make` the parameters of a run over several hosts, which it takes among its keywords."""
    signature = inspect.signature(make)
    *own, flags = signature.parameters.values()
    make.__signature__ = signature.replace(parameters=[*own, *HOST_PARAMETERS, flags])  # type: ignore[attr-defined]  # read by inspect
    make.__annotations__ = {**make.__annotations__, **HOST_ANNOTATIONS, "return": PlannedRun}
    return make


@_with_host_flags
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
    as_: Annotated[
        str | None,
        Field(description="the name of the run's directory: begin the run, or go on with it if it has saved anything"),
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
    trace_flight_mib: Annotated[
        int | None,
        Field(description="memory of each node's flight recorder, in MiB; 16 for the root, 4 for the others"),
    ] = None,
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
    flight_bytes = None if trace_flight_mib is None else trace_flight_mib * MIB
    trace_settings = TraceSettings(trace, trace_include, trace_exclude, flight_bytes, trace_at_end)
    resumed = None
    if resume is not None:
        resumed = RunDirectory.open(resume)
        resumed.newest_state()
    hosts = hosts_options({flag.name: flags.pop(flag.name) for flag in HOST_FLAGS if flag.name in flags})
    layout = layout_of(experiment, resumed, flags, OPTIONS.defaults)
    shapes = _shapes(hosts, layout, in_one_process=single_process)
    topology, source = layout.topology(shapes), layout.source
    if not single_process and len(topology.nodes) > 1:
        layout = layout.imported()
        topology = layout.topology(shapes)
    # On one machine, torch says best what is wrong with its GPU, which may be of another make.
    placement = place(topology, shapes, ignored=() if hosts is not None else ("GPUs",))
    _check_edges(topology, shapes, hosts)
    topology.main_actor()  # or say that there is none, before anything is made
    in_one_process = single_process or source is None or len(topology.nodes) == 1
    if source is None and listen != LISTEN:
        raise UsageError(
            "--listen: no other process can import this experiment, so all its nodes run in this one; write it as the "
            "function `experiment` of a file to use several"
        )
    check_open_files(0 if in_one_process else len(topology.nodes) - 1)
    tls_dir = tls_dir.absolute() if tls_dir is not None else folder_of_environment()
    credentials = None if tls_dir is None else Credentials.of_folder(tls_dir)
    transport = transport_for(listen, credentials)
    if not in_one_process and isinstance(transport, MemoryTransport):
        raise UsageError(f"--listen: no other process reaches {listen}; write tcp://HOST:PORT or unix:///PATH")
    if hosts is None:
        transport.check(listen)
    else:
        if tls != "off" and tls_dir is None and hosts.token is None:
            check_cryptography()
        listen = head_address(listen, LISTEN, hosts, encrypted=tls != "off")
    if is_exposed(listen) and tls != "off":
        raise UsageError(
            f"--listen: {listen} is plain TCP beyond this host: others could read the run and inject messages; "
            "write tls://HOST:PORT with --tls-dir, or add --tls off"
        )
    own_file, own_function = source or (None, NAME)
    command = ["orchestra", "run", *([] if own_file is None else [str(own_file)]), *layout.words, f"--seed={seed or 0}"]
    return PlannedRun(
        topology=topology,
        launch=RunPlan(
            experiment=None if own_file is None else own_file.absolute(),
            flags=layout.words,
            seed=seed or 0,
            run_directory=Path(),
            function=own_function,
            hosts=shapes,
            log_level=log_level,
            quiet=quiet,
            trace=trace_settings,
            tls_dir=tls_dir if "tls://" in listen else None,
            shared_memory=shared_memory_bytes(shared_memory),
            unencrypted=tls == "off",
        ),
        layout=layout,
        name=as_,
        hosts=hosts,
        shapes=shapes,
        placement=placement,
        listen=None if in_one_process else listen,
        runs_dir=runs_dir,
        resumed=resumed,
        command=command,
    )


OPTIONS = Flags.of(plan, keywords_alone=True)
"""The options of every run: keywords of `run`, and flags of `orchestra run`."""
OWN_OPTIONS = Flags(flag for flag in OPTIONS if flag.name not in HOST_FLAGS.defaults)
"""The options of every run that do not need several hosts."""


def _check_edges(topology: Topology, shapes: Hosts, hosts: HostsOptions | None) -> None:
    if hosts is not None:
        check_edges(topology, shapes, tunnel=bool(hosts.settings.get("tunnel")), advertise=hosts.advertise)


def _shapes(hosts: HostsOptions | None, layout: Layout, *, in_one_process: bool) -> Hosts:
    """Return the hosts of a run as far as they are known before it begins.

    Raises:
        UsageError: the experiment does not run on several hosts.
    """
    this = this_machine()
    if hosts is None:
        # One process uses one core, and its topology is the same on every machine.
        return Hosts([one_core(this) if in_one_process or layout.source is None else this])
    if in_one_process:
        raise UsageError("--single-process: all nodes of such a run are in this process, so it has no --hosts")
    if layout.source is None:
        raise UsageError(
            "--hosts: no other process can import this experiment, so all its nodes run in this one; write it as the "
            "function `experiment` of a file"
        )
    if not layout.spreads:
        name = layout.function.__name__
        raise UsageError(f"--hosts: {name}() runs on one host: it declares no parameter `hosts: Hosts` to spread over")
    return hosts.shapes(this)


def shared_memory_bytes(mib: int | None) -> int:
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
