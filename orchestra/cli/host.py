"""`orchestra host`: the agent of a host. A launcher starts it, or a user who adds a host to a running run."""

import asyncio
import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path

from orchestra.errors import UsageError
from orchestra.hosts.agent import JOIN_S, Agent
from orchestra.hosts.token import STDIN, JoinToken
from orchestra.nodes import stacks
from orchestra.runs.flag_parser import FlagParser

INDEX = "JOB_COMPLETION_INDEX"
"""The number of a pod in an Indexed Job of Kubernetes, from 0."""


def command(arguments: list[str]) -> int:
    """Take part in a run with this machine."""
    parser = FlagParser(
        prog="orchestra host",
        description="Take part in a run with this machine: start the processes that the head of the run places here, "
        "and end with it. Exit codes: 0 the run is over, 75 this host has left and may be started again, 74 cannot "
        "write, 76 other version, 77 not let in.",
    )
    parser.add_argument(
        "--token", required=True, metavar="PATH", help="the file of the join token, or - for standard input"
    )
    parser.add_argument(
        "--slot", type=int, help="the number of this host, from 1; by default that of its pod, or the next one"
    )
    parser.add_argument("--name", default="", help="the name of this host for people; by default the machine's")
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="the folder for the run's files")
    parser.add_argument(
        "--join-timeout", type=float, default=JOIN_S, metavar="S", help=f"seconds to look for the head; {JOIN_S:g}"
    )
    parser.add_argument(
        "--dial-on",
        action="store_true",
        help="keep looking for the head if nothing listens at its addresses: it may be started again there",
    )
    parser.add_argument(
        "--bound",
        action="store_true",
        help="end once standard input has ended, even while the run continues; needs --token -",
    )
    options = parser.parse_strictly(arguments)
    if options.bound and options.token != STDIN:
        raise UsageError("--bound is for an agent whose token comes by standard input: add --token -")
    if options.slot is not None and options.slot < 1:
        raise UsageError(f"--slot: {options.slot} is not allowed: it must be 1 or more")
    if sys.platform != "linux":
        raise UsageError(f"orchestra host runs on Linux, and this is {sys.platform}")
    token = JoinToken.read(options.token)
    index = os.environ.get(INDEX, "")
    agent = Agent(
        token,
        slot=int(index) + 1 if options.slot is None and index.isdecimal() else options.slot,
        name=options.name,
        scratch=options.scratch,
        join_timeout=options.join_timeout,
        dial_on=options.dial_on,
        bound=options.bound,
    )
    return asyncio.run(_run(agent, stdin=options.token == STDIN))


async def _run(agent: Agent, *, stdin: bool) -> int:
    loop = asyncio.get_running_loop()

    def terminate(number: int, frame: object) -> None:
        loop.call_soon_threadsafe(agent.terminated.set)

    with ExitStack() as stack:
        stack.enter_context(stacks.handling(terminate, signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
        if stdin:
            _watch_stdin(agent)
        return await agent.run()


def _watch_stdin(agent: Agent) -> None:
    """Note when the starter closes standard input or dies: from then on no process waits for this agent."""
    loop = asyncio.get_running_loop()

    def readable() -> None:
        if not os.read(0, 1 << 12):
            loop.remove_reader(0)
            agent.abandoned.set()

    try:
        loop.add_reader(0, readable)
    except PermissionError:  # a file, which has ended with its line
        agent.abandoned.set()
