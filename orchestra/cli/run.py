"""`orchestra run`: start an experiment and see it through."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from rich.filesize import decimal

from orchestra import log
from orchestra.cli.endings import failures_in_one_line
from orchestra.cli.exit_codes import ABORTED, FAILED
from orchestra.clock import RealClock
from orchestra.errors import UsageError
from orchestra.runs.experiment import build, find_experiment, load_experiment, variant
from orchestra.runs.flags import FlagParser, Flags
from orchestra.runs.processes import Launch
from orchestra.runs.run_directory import RunDirectory
from orchestra.runs.runner import (
    RunResult,
    run_in_one_process,
    run_in_processes,
    run_loop,
    tuned_gc,
)
from orchestra.trace.recording.settings import TraceSettings
from orchestra.wire.arena import CAPACITY, MIB_VARIABLE, MOST_MIB, capacity_wanted
from orchestra.wire.transports.memory import MemoryTransport
from orchestra.wire.transports.registry import transport_for
from orchestra.wire.transports.tls import TLS_DIR_VARIABLE

_HELP = """Run an experiment: a Python file with a function `experiment` that returns a topology.

The parameters of that function are flags too; `orchestra run FILE --help` lists them.
Ctrl-C once saves and ends, twice aborts."""


def _parser() -> FlagParser:
    parser = FlagParser(prog="orchestra run", description=_HELP, usage="orchestra run FILE [flags]")
    parser.add_argument("file", metavar="FILE", type=Path, nargs="?", help="the experiment, a Python file")
    group = parser.add_argument_group("flags of every run")
    group.add_argument("--seed", type=int, help="decides every random number of the run (default: 0)")
    group.add_argument(
        "--resume",
        type=Path,
        metavar="RUN_DIR",
        help="go on with this run from the last moment that it saved, in place of FILE; flags given replace its own",
    )
    group.add_argument(
        "--runs-dir", type=Path, default=Path("runs"), metavar="DIR", help="where runs keep their files (default: runs)"
    )
    group.add_argument("--dry-run", action="store_true", help="print the topology and stop")
    group.add_argument(
        "--single-process",
        action="store_true",
        help="run all nodes in this process, over memory; two runs with one seed are then equal bit for bit",
    )
    group.add_argument(
        "--listen",
        default="tcp://127.0.0.1:0",
        metavar="ADDRESS",
        help="where the other processes reach this one, tcp://HOST:PORT, tls://HOST:PORT or unix:///PATH "
        "(default: tcp://127.0.0.1:0)",
    )
    group.add_argument(
        "--tls-dir",
        type=Path,
        metavar="DIR",
        help="the folder of ca.pem, cert.pem and key.pem (mode 0600), for --listen tls://HOST:PORT; every process of "
        f"the run reads it. The variable {TLS_DIR_VARIABLE} does the same",
    )
    group.add_argument(
        "--shared-memory",
        type=int,
        metavar="MIB",
        help="how much of what one process sends another on this host may lie in memory that both see; 0 for none, so "
        f"that all goes by sockets (default: {CAPACITY >> 20}). The variable {MIB_VARIABLE} does the same",
    )
    group.add_argument(
        "--log-level",
        default="info",
        choices=["debug", "info", "warning", "error"],
        help="what goes into the logs of the run (default: info)",
    )
    TraceSettings.add_to(parser)
    return parser


def command(arguments: list[str]) -> int:
    """Run an experiment."""
    # Two passes: the file must be known before its flags are.
    earlier = _resumed_run(arguments)
    path = _experiment_path(arguments) if earlier is None else earlier.experiment
    if path is None:
        _parser().parse_strictly(arguments)  # prints the help, or says which flag is wrong
        raise UsageError("orchestra run needs the file of an experiment, as in: orchestra run experiments/qmix_8m.py")
    path = find_experiment(path)
    function = load_experiment(path) if earlier is None else variant(load_experiment(path), **earlier.flags)
    flags = Flags.of(function)
    parser = _parser()
    flags.add_to(parser)
    options = parser.parse_strictly(arguments)
    values = flags.collect(options)
    if options.seed is not None and options.seed < 0:
        raise UsageError(f"--seed: {options.seed} is not allowed: it must be 0 or more")
    if earlier is not None:
        for option, given in (("FILE", options.file), ("--seed", options.seed)):
            if given is not None:
                raise UsageError(f"{option} is what the run that is resumed had, and cannot be given")
    seed = earlier.seed if earlier is not None else options.seed or 0
    trace = TraceSettings.of(options)
    topology = build(function, values)
    topology.main_actor()  # or say that there is none, before anything is made
    in_one_process = options.single_process or len(topology.nodes) == 1
    if options.tls_dir is not None:
        os.environ[TLS_DIR_VARIABLE] = str(options.tls_dir.absolute())  # where what is launched finds it too
    if options.shared_memory is not None:
        if not 0 <= options.shared_memory <= MOST_MIB:
            raise UsageError(
                f"--shared-memory: {options.shared_memory} is not allowed: it must be from 0, for none, to {MOST_MIB}"
            )
        os.environ[MIB_VARIABLE] = str(options.shared_memory)  # where what is launched finds it too
    capacity_wanted()  # or say what is wrong with it, before anything is made
    transport = transport_for(options.listen)
    if not in_one_process and isinstance(transport, MemoryTransport):
        raise UsageError(f"--listen: no other process reaches {options.listen}; write tcp://HOST:PORT or unix:///PATH")
    transport.check(options.listen)
    if options.dry_run:
        print(topology.describe())
        return 0
    topology.prepare()
    clock = RealClock()
    if earlier is None:
        run, resume_from = RunDirectory.create(options.runs_dir, topology.name, seed, clock=clock), None
    else:
        run, resume_from = earlier.run, earlier.run.newest_state().absolute()
    run.write_config(experiment=path, flags=values, seed=seed, argv=["orchestra", "run", *arguments], clock=clock)
    log_file = run.logs / f"{topology.root.name}.jsonl"
    log.configure(run.logs, node=topology.root.name, level=options.log_level)
    try:
        with failures_in_one_line("the run", log_file), tuned_gc():
            given = flags.to_argv(values)
            launch = Launch(path.absolute(), given, seed, run.path.absolute(), options.log_level, trace, resume_from)
            if in_one_process:
                outcome = run_loop(run_in_one_process(topology, run, launch))
            else:
                outcome = run_loop(run_in_processes(topology, run, launch, options.listen))
            return _exit_code(outcome, log_file)
        return FAILED
    finally:
        log.close()
        _say_where_the_trace_is(run)


def _say_where_the_trace_is(run: RunDirectory) -> None:
    files = list(run.traces.glob("*.trace"))
    if files:
        nbytes = sum(file.stat().st_size for file in files)
        print(f"trace: {decimal(nbytes)} in {run.traces}; orchestra trace ls {run.path}")


def _experiment_path(arguments: Sequence[str]) -> Path | None:
    """The first word that is neither a flag nor the value of a flag of `orchestra run`."""
    takes_value = {
        "--seed",
        "--resume",
        "--runs-dir",
        "--listen",
        "--tls-dir",
        "--log-level",
        *TraceSettings.TAKE_VALUES,
    }
    previous = ""
    for word in arguments:
        if not word.startswith("-") and previous not in takes_value:
            return Path(word)
        previous = word
    return None


def _resumed_run(arguments: Sequence[str]) -> "_Earlier | None":
    """The run that `--resume` names, if it is there."""
    for index, word in enumerate(arguments):
        if word.startswith("--resume="):
            return _Earlier.of(Path(word.partition("=")[2]))
        if word == "--resume" and index + 1 < len(arguments):
            return _Earlier.of(Path(arguments[index + 1]))
    return None


@dataclass(frozen=True, slots=True)
class _Earlier:
    """A run that is to go on."""

    run: RunDirectory
    experiment: Path
    flags: Mapping[str, Any]
    seed: int

    @classmethod
    def of(cls, path: Path) -> Self:
        run = RunDirectory.open(path)
        run.newest_state()
        config = run.config()
        try:
            return cls(run, Path(config["experiment"]["absolute"]), dict(config["flags"]), int(config["seed"]))
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{str(path)!r}: its config.json lacks {error}") from error


def _exit_code(outcome: RunResult, log_file: Path) -> int:
    if outcome.completed:
        return 0
    if outcome.reason == "aborted":
        return ABORTED
    print(f"orchestra: the run failed: {outcome.verdict} ({outcome.reason}); traceback in {log_file}", file=sys.stderr)
    return FAILED
