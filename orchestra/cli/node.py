"""`orchestra node`: a launched process of a run. `orchestra run` starts it; users do not."""

import contextlib
import os
import signal
from typing import TextIO

from orchestra import log
from orchestra.hosts.lifeline import Lifeline
from orchestra.hosts.run_plan import RunPlan
from orchestra.hosts.token import JoinToken, token_of_process
from orchestra.nodes import stacks
from orchestra.runs.api import failing_in_one_line
from orchestra.runs.flag_parser import FlagParser
from orchestra.runs.launched import topology_of
from orchestra.runs.launched_node import run_node
from orchestra.runs.run_directory import RunDirectory
from orchestra.runs.runner import node_of, run_loop, tuned_gc


def command(arguments: list[str]) -> int:
    """Run one node of a run, in this process."""
    parser = FlagParser(prog="orchestra node", description="Run one node of a run, in this process.")
    parser.add_argument("node", help="its name")
    parser.add_argument("--listen", required=True, help="the address of the node")
    parser.add_argument("--plan", required=True, help="the plan of the run, as JSON")
    options = parser.parse_strictly(arguments)
    token, fd = token_of_process()
    # Schedulers and terminals signal all processes of a job. Nodes end by message, or when their starter does. The
    # signals are handled, not ignored: what a node starts would inherit that.
    with stacks.handling(lambda *_: None, signal.SIGTERM, signal.SIGINT, signal.SIGHUP), Lifeline(fd) as lifeline:
        return _run(options.node, options.listen, RunPlan.read(options.plan), token, lifeline)


def _run(name: str, listen: str, plan: RunPlan, token: JoinToken, lifeline: Lifeline) -> int:
    topology = topology_of(plan)
    topology.find(name)
    run = RunDirectory(plan.run_directory)
    node = node_of(
        name,
        topology,
        plan,
        listen=listen,
        join=token.address,
        secret=token.secret,
        tls=token.tls,
        advertise=plan.advertise,
    )
    with (
        contextlib.ExitStack() as stack,
        log.configured(
            run.logs,
            node=name,
            level=plan.log_level,
            quiet=plan.quiet,
            stream=stack.enter_context(_own_output()) if plan.log_to_output else None,
        ),
        failing_in_one_line(f"node {name}", run.logs / f"{name}.jsonl", run),
        tuned_gc(),
    ):
        log.get().info("node ends", reason=run_loop(run_node(topology, node, token.address, lifeline)))
    return 0


def _own_output() -> TextIO:
    """Return the standard output as it is now: code that redirects it does not redirect the log."""
    return os.fdopen(os.dup(1), "w", encoding="utf-8", errors="backslashreplace")
