"""`orchestra node`: a launched process of a run. `orchestra run` starts it; it is of no use to people."""

import os

from orchestra import log
from orchestra.errors import UsageError
from orchestra.hosts.keeper import SECRET_VARIABLE
from orchestra.hosts.run_plan import RunPlan
from orchestra.runs.api import failing_in_one_line
from orchestra.runs.flags import FlagParser
from orchestra.runs.launched import topology_of
from orchestra.runs.run_directory import RunDirectory
from orchestra.runs.runner import node_of, run_loop, run_node, tuned_gc


def command(arguments: list[str]) -> int:
    """Run one node of a run, in this process."""
    parser = FlagParser(prog="orchestra node", description="Run one node of a run, in this process.")
    parser.add_argument("node", help="its name")
    parser.add_argument("--join", required=True, help="the address of the root")
    parser.add_argument("--listen", required=True, help="the address of the node")
    parser.add_argument("--plan", required=True, help="the plan plan of the run, as JSON")
    options = parser.parse_strictly(arguments)
    secret = _secret()
    plan = RunPlan.read(options.plan)
    topology = topology_of(plan)
    topology.find(options.node)
    run = RunDirectory.open(plan.run_directory)
    node = node_of(options.node, topology, plan, listen=options.listen, join=options.join, secret=secret)
    with (
        log.configured(run.logs, node=node.name, level=plan.log_level, quiet=plan.quiet),
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
