"""`orchestra node`: be a launched process of a run. Not for people, and so not in the overview."""

import os
from pathlib import Path

from orchestra import log
from orchestra.cli.endings import failures_in_one_line
from orchestra.cli.exit_codes import FAILED
from orchestra.errors import UsageError
from orchestra.nodes.node import Node
from orchestra.runs.experiment import build, load_experiment
from orchestra.runs.flags import FlagParser, Flags
from orchestra.runs.processes import SECRET_VARIABLE, Launch
from orchestra.runs.run_directory import RunDirectory
from orchestra.runs.runner import recorder_of, run_loop, run_node, tuned_gc
from orchestra.trace.recording.settings import TraceSettings


def command(arguments: list[str]) -> int:
    """Be a launched process of a run."""
    parser = FlagParser(prog="orchestra node", description="A launched process of a run.")
    parser.add_argument("file", type=Path)
    for option in ("--node", "--join", "--listen", "--log-level"):
        parser.add_argument(option, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--run-directory", type=Path, required=True)
    parser.add_argument("--resume-from", type=Path)
    TraceSettings.add_to(parser)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_strictly(arguments[:end])
    secret = _secret()
    function = load_experiment(options.file)
    topology = build(function, Flags.of(function).parse(arguments[end + 1 :]))
    if options.node not in topology.nodes:
        raise UsageError(f"{options.file} has no node {options.node!r}; its nodes are {', '.join(topology.nodes)}")
    run = RunDirectory.open(options.run_directory)
    log.configure(run.logs, node=options.node, level=options.log_level)
    trace = TraceSettings.of(options)
    launch = Launch(options.file, arguments[end + 1 :], options.seed, run.path, options.log_level, trace)
    node = Node(
        options.node,
        listen=options.listen,
        join=options.join,
        secret=secret,
        seed=options.seed,
        run_directory=run.path,
        recorder=recorder_of(options.node, topology, run, launch, deterministic=False),
        resume_from=options.resume_from,
    )
    try:
        with failures_in_one_line(f"node {options.node}", run.logs / f"{options.node}.jsonl"), tuned_gc():
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
