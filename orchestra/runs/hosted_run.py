"""Runs a topology over several hosts: has agents started, waits for them, and lays it out over their shapes."""

import asyncio
import shutil
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

from orchestra.hosts.bundle import Bundle, UnpackedCode
from orchestra.hosts.certificates import make_credentials
from orchestra.hosts.keeper import show
from orchestra.hosts.messages import HEAD
from orchestra.hosts.output import HostLogs
from orchestra.hosts.run_plan import RunPlan
from orchestra.hosts.shape import Hosts
from orchestra.hosts.token import JoinToken
from orchestra.hosts.transfer import FILES, Collector, Files
from orchestra.launch.engines import ENGINES
from orchestra.launch.protocol import HostRequest, Launcher
from orchestra.nodes.node_actors import COLLECTOR
from orchestra.runs.head import Head
from orchestra.runs.head_actor import HeadActor
from orchestra.runs.head_addresses import address_beyond, addresses_for_others
from orchestra.runs.hosted_processes import HostedProcesses
from orchestra.runs.hosts_options import HostsOptions
from orchestra.runs.plan import PlannedRun
from orchestra.runs.reached_hosts import swapped_pairs
from orchestra.runs.resumption import warn_of_unplanned
from orchestra.runs.run_directory import RunDirectory
from orchestra.runs.runner import Asked, Ending, Stopping, node_of, run_root
from orchestra.wire.credentials import Credentials

T = TypeVar("T")

LET_GO_S = 2.0
"""Seconds for agents to end that have nothing to stop."""


async def run_over_hosts(planned: PlannedRun, plan: RunPlan, stopping: Stopping) -> Ending:
    """Run the root of a topology in this process, and the others in processes of this host and of those of agents.

    Args:
        planned: over the hosts as they were asked for.
        plan: of the run.
        stopping: stops it.

    Raises:
        HostsMissing: too few hosts have come.
        UsageError: the topology cannot be laid out over those that have.
    """
    assert planned.hosts is not None
    assert planned.listen is not None
    run = f"{planned.topology.name}-{plan.run_directory.name}"
    secret = _token(planned.hosts, plan, run)
    node = node_of(
        planned.topology.root.name,
        planned.topology,
        plan,
        listen=planned.listen,
        secret=secret.secret,
        tls=secret.tls,
        advertise=planned.hosts.advertise,
    )
    launcher = launcher_of(planned.hosts)
    async with node.running():
        directory = RunDirectory(plan.run_directory)
        logs = HostLogs(directory.logs, node.clock, show)
        code = Bundle.read(directory.code.read_bytes())
        head = Head(node, run, planned.hosts, launcher, lambda: node.listening, logs, code, stopping)
        node.spawn(HEAD, HeadActor, head)
        writable = (directory.state.name, directory.traces.name)
        files = node.spawn(FILES, Files, directory.path, writable, head.piece_arrived)
        node.spawn(COLLECTOR, Collector, files, lambda: head.agents)
        following = asyncio.create_task(head.follow())
        token = secret.joining(*addresses_for_others(node.listening))
        begun = False
        try:
            await launcher.start(launcher.submission(plan, requests_of(planned.hosts)), token.line())
            shapes = await _unless_stopped(head.rendezvous(), stopping)
            if isinstance(shapes, Ending):
                return shapes
            laid_out = planned.over(Hosts([*(host for host in planned.shapes if host.slot == 0), *shapes]))
            plan = replace(plan, hosts=laid_out.shapes)
            beyond = address_beyond(planned.hosts, encrypted=not plan.unencrypted)
            agents = {slot.slot: slot.agent for slot in head.slots.values() if slot.agent is not None}
            swapped = await _unless_stopped(swapped_pairs(laid_out, node, agents, beyond), stopping)
            if isinstance(swapped, Ending):
                return swapped
            directory.write_hosts(laid_out.shapes, laid_out.placement)
            warn_of_unplanned(plan.resume_from, laid_out.topology)
            with _unpacked(code, directory) as here:
                processes = HostedProcesses(node, laid_out, plan, head, here, swapped)
                begun = True
                return await run_root(laid_out.topology, plan, node, processes, stopping, token)
        finally:
            if not begun:
                await head.end(75, "the run has not begun", LET_GO_S)
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following


def launcher_of(options: HostsOptions) -> Launcher:
    """Return what starts the agents."""
    return ENGINES[options.engine].launcher(options.hosts, options.settings)


def requests_of(options: HostsOptions) -> list[HostRequest]:
    """Return what the engine is asked for."""
    return [HostRequest(host.slot, host.name, host.cores, host.gpus, host.memory) for host in options.hosts]


@contextmanager
def _unpacked(code: Bundle, run: RunDirectory) -> Iterator[UnpackedCode]:
    """While the block runs, keep the code of the run unpacked in its directory.

    Raises:
        CannotWrite: the disk is full.
    """
    folder = run.path.absolute() / "code"
    shutil.rmtree(folder, ignore_errors=True)  # of a head that was killed
    try:
        yield code.unpack(folder, folder.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _token(options: HostsOptions, plan: RunPlan, run: str) -> JoinToken:
    """Return the secret and the credentials of a run: those of a token that was made before, or new ones."""
    if options.token is not None:
        return JoinToken.read(str(options.token))
    if plan.tls_dir is not None:
        return JoinToken.new(run, (), tls=Credentials.of_folder(plan.tls_dir))
    return JoinToken.new(run, (), tls=None if plan.unencrypted else make_credentials)


async def _unless_stopped(beginning: Coroutine[Any, Any, T], stopping: Stopping) -> T | Ending:
    """Return what `beginning` returns, or how the run has ended before."""
    asked: asyncio.Future[Asked] = asyncio.get_running_loop().create_future()

    def obey(state: Asked, abort: bool) -> None:
        if not asked.done():
            asked.set_result(state)

    waiting = asyncio.create_task(beginning)
    with stopping.obeyed_by(obey):
        ends: set[asyncio.Future[Any]] = {waiting, asked}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    if not waiting.done():
        waiting.cancel()
        return Ending(asked.result(), "stopped before it had begun")
    return waiting.result()
