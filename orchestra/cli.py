"""The command line: `orchestra run`, and the commands that packages above add."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points, version
from pathlib import Path

from orchestra import log
from orchestra.clock import RealClock
from orchestra.errors import OrchestraError, UsageError
from orchestra.experiment import build, load_experiment
from orchestra.flags import FlagParser, Flags
from orchestra.launch.local import SECRET_VARIABLE, AllNodesLost, Launch
from orchestra.node import Node
from orchestra.run import Outcome, run_in_one_process, run_in_processes, run_loop, run_node
from orchestra.run_directory import RunDirectory
from orchestra.transport.memory import MemoryTransport
from orchestra.transport.registry import transport_for

COMMANDS = "orchestra.commands"
"""The entry points that add commands: functions from the arguments to an exit code, documented in one line."""

FAILED = 1
MISUSED = 2
ABORTED = 130

_RUN_HELP = """Run an experiment: a Python file with a function `experiment` that returns a topology.

The parameters of that function are flags too; `orchestra run FILE --help` lists them.
Ctrl-C once drains and saves, twice aborts."""


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out one command and return its exit code: 0, 1 for a run that failed, 2 for a misuse, 130 aborted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(arguments)
    except UsageError as error:
        print(f"orchestra: error: {error}", file=sys.stderr)
        return MISUSED
    except KeyboardInterrupt:
        return ABORTED


def _dispatch(arguments: list[str]) -> int:
    added = {point.name: point for point in entry_points(group=COMMANDS)}
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview(added))
        return 0 if arguments else MISUSED
    name, rest = arguments[0], arguments[1:]
    if name == "--version":
        print(f"orchestra {version('orchestra-rl')}")
        return 0
    if name == "run":
        return _run(rest)
    if name == "node":
        return _node(rest)
    if name in added:
        command: Callable[[list[str]], int] = added[name].load()
        return command(rest)
    known = ", ".join(["run", *sorted(added)])
    raise UsageError(f"there is no command {name!r}; the commands are {known}")


def _overview(added: dict[str, EntryPoint]) -> str:
    rows = [("run FILE [flags]", "run an experiment")]
    for name, point in sorted(added.items()):
        doc = (point.load().__doc__ or "").strip().splitlines()
        rows.append((name, doc[0].rstrip(".") if doc else ""))
    width = max(len(row[0]) for row in rows) + 2
    listed = "\n".join(f"  {left:<{width}}{right}" for left, right in rows)
    return (
        "usage: orchestra COMMAND ...\n\n"
        "Runs reinforcement learning as actors that send each other typed messages.\n\n"
        f"commands:\n{listed}\n\n"
        "`orchestra COMMAND --help` says more; `orchestra run FILE --help` lists the flags of an experiment.\n"
        "`orchestra --version` prints the version."
    )


def _run_parser() -> FlagParser:
    parser = FlagParser(prog="orchestra run", description=_RUN_HELP, usage="orchestra run FILE [flags]")
    parser.add_argument("file", metavar="FILE", type=Path, nargs="?", help="the experiment, a Python file")
    group = parser.add_argument_group("flags of every run")
    group.add_argument("--seed", type=int, default=0, help="decides every random number of the run (default: 0)")
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
        help="where the other processes reach this one, tcp://HOST:PORT or unix:///PATH (default: tcp://127.0.0.1:0)",
    )
    group.add_argument(
        "--log-level",
        default="info",
        choices=["debug", "info", "warning", "error"],
        help="what goes into the logs of the run (default: info)",
    )
    return parser


def _run(arguments: list[str]) -> int:
    # Two passes: the file must be known before its flags are.
    path = _experiment_path(arguments)
    if path is None:
        _run_parser().parse_strictly(arguments)  # prints the help, or says which flag is wrong
        raise UsageError("orchestra run needs the file of an experiment, as in: orchestra run experiments/qmix_8m.py")
    function = load_experiment(path)
    flags = Flags.of(function)
    parser = _run_parser()
    flags.add_to(parser)
    options = parser.parse_strictly(arguments)
    values = flags.collect(options)
    if options.seed < 0:
        raise UsageError(f"--seed: {options.seed} is not allowed: it must be 0 or more")
    topology = build(function, values)
    main_actor = topology.main_actor()
    in_one_process = options.single_process or len(topology.nodes) == 1
    if not in_one_process and isinstance(transport_for(options.listen), MemoryTransport):
        raise UsageError(f"--listen: no other process reaches {options.listen}; write tcp://HOST:PORT or unix:///PATH")
    if options.dry_run:
        print(topology.describe())
        return 0
    clock = RealClock()
    run = RunDirectory.create(options.runs_dir, topology.name, options.seed, clock=clock)
    run.write_config(
        experiment=path, flags=values, seed=options.seed, argv=["orchestra", "run", *arguments], clock=clock
    )
    log.configure(run.logs, node=topology.root.name, level=options.log_level)
    try:
        with _failures_in_one_line(run):
            if in_one_process:
                outcome = run_loop(run_in_one_process(topology, run, options.seed))
            else:
                given = flags.to_argv(values)
                launch = Launch(path.absolute(), given, options.seed, run.path.absolute(), options.log_level)
                outcome = run_loop(run_in_processes(topology, run, launch, options.listen))
            return _exit_code(outcome, main_actor)
        return FAILED
    finally:
        log.close()


def _experiment_path(arguments: Sequence[str]) -> Path | None:
    """The first word that is neither a flag nor the value of a flag of `orchestra run`."""
    takes_value = {"--seed", "--runs-dir", "--listen", "--log-level"}
    previous = ""
    for word in arguments:
        if not word.startswith("-") and previous not in takes_value:
            return Path(word)
        previous = word
    return None


def _exit_code(outcome: Outcome, main_actor: str) -> int:
    if outcome.completed:
        return 0
    if outcome.reason == "aborted":
        return ABORTED
    print(f"orchestra: the run failed: {main_actor}: {outcome.reason}", file=sys.stderr)
    return FAILED


@contextmanager
def _failures_in_one_line(run: RunDirectory) -> Iterator[None]:
    """Say in one line what failed; the logs have the rest. A misuse stays a `UsageError`."""
    try:
        yield
    except* UsageError as group:
        raise _first(group) from None
    except* (OrchestraError, AllNodesLost) as group:
        error = _first(group)
        cause = f" ({type(error.__cause__).__name__}: {error.__cause__})" if error.__cause__ else ""
        log.get().error("the run failed", exc_info=error)
        print(f"orchestra: the run failed: {error}{cause}; see {run.logs}", file=sys.stderr)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _node(arguments: list[str]) -> int:
    """Be a launched process of a run. Not for people, and so not in the overview."""
    parser = FlagParser(prog="orchestra node", description="A launched process of a run.")
    parser.add_argument("file", type=Path)
    for option in ("--node", "--join", "--listen", "--log-level"):
        parser.add_argument(option, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--run-directory", type=Path, required=True)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_strictly(arguments[:end])
    secret = _secret()
    function = load_experiment(options.file)
    topology = build(function, Flags.of(function).parse(arguments[end + 1 :]))
    if options.node not in topology.nodes:
        raise UsageError(f"{options.file} has no node {options.node!r}; its nodes are {', '.join(topology.nodes)}")
    run = RunDirectory.open(options.run_directory)
    log.configure(run.logs, node=options.node, level=options.log_level)
    node = Node(
        options.node,
        listen=options.listen,
        join=options.join,
        secret=secret,
        seed=options.seed,
        run_directory=run.path,
    )
    try:
        with _failures_in_one_line(run):
            reason = run_loop(run_node(topology, node, options.join))
            log.get().info("node ends", reason=reason)
            return 0
        return FAILED
    finally:
        log.close()


def _secret() -> bytes:
    """Take the run's secret out of the environment, which whatever this process starts will inherit."""
    digits = os.environ.pop(SECRET_VARIABLE, "")
    if not digits:
        raise UsageError(f"a launched process finds the run's secret in {SECRET_VARIABLE}, which is not set")
    try:
        return bytes.fromhex(digits)
    except ValueError:
        raise UsageError(f"{SECRET_VARIABLE} does not hold hexadecimal digits") from None
