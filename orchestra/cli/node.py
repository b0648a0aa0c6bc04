"""`orchestra node`: a launched process of a run. `orchestra run` starts it; it is of no use to people."""

import os

from orchestra import log
from orchestra.errors import UsageError
from orchestra.runs.api import failing_in_one_line
from orchestra.runs.experiment import build, load_experiment
from orchestra.runs.flags import FlagParser, Flags
from orchestra.runs.processes import SECRET_VARIABLE, Launch
from orchestra.runs.run_directory import RunDirectory
from orchestra.runs.runner import node_of, run_loop, run_node, tuned_gc


def command(arguments: list[str]) -> int:
    """Run one node of a run, in this process."""
    parser = FlagParser(prog="orchestra node", description="Run one node of a run, in this process.")
    parser.add_argument("node", help="its name")
    parser.add_argument("--join", required=True, help="the address of the root")
    parser.add_argument("--listen", required=True, help="the address of the node")
    parser.add_argument("--plan", required=True, help="the launch plan of the run, as JSON")
    options = parser.parse_strictly(arguments)
    secret = _secret()
    launch = Launch.read(options.plan)
    if launch.experiment is None:
        raise UsageError("--plan: it names no experiment")
    function = load_experiment(launch.experiment, launch.function)
    topology = build(function, Flags.of(function).parse(launch.flags))
    topology.find(options.node)
    run = RunDirectory.open(launch.run_directory)
    node = node_of(options.node, topology, launch, listen=options.listen, join=options.join, secret=secret)
    with (
        log.configured(run.logs, node=node.name, level=launch.log_level, quiet=launch.quiet),
        failing_in_one_line(f"node {node.name}", run.logs / f"{node.name}.jsonl", run),
        tuned_gc(),
    ):
        log.get().info("node ends", reason=run_loop(run_node(topology, node, options.join)))
    return 0


def _secret() -> bytes:
    """Return the run's secret, and remove it from the environment, which every child process inherits."""
    digits = os.environ.pop(SECRET_VARIABLE, "")
    if not digits:
        raise UsageError(f"a launched process finds the run's secret in {SECRET_VARIABLE}, which is not set")
    try:
        return bytes.fromhex(digits)
    except ValueError:
        raise UsageError(f"{SECRET_VARIABLE} does not hold hexadecimal digits") from None
