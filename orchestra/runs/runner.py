"""Runs a topology to its end: in one process, or with a process for each node."""

import asyncio
import contextlib
import contextvars
import gc
import hashlib
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from dataclasses import astuple, dataclass
from functools import partial
from types import FrameType
from typing import Any, Literal, TypeVar

from orchestra import log
from orchestra.actors.addresses import AGENT
from orchestra.actors.cell import Cell
from orchestra.actors.restarts import STOPPED
from orchestra.actors.statistics import NodeStatistics
from orchestra.actors.supervisor import STOP_S
from orchestra.actors.system_messages import SYSTEM, InterruptMsg, StopNodeMsg
from orchestra.clock import RealClock
from orchestra.errors import OrchestraError
from orchestra.hosts.run_plan import RunPlan
from orchestra.hosts.token import JoinToken
from orchestra.nodes import stacks
from orchestra.nodes.node import Node
from orchestra.nodes.shutdown import stop_actors
from orchestra.runs import join_file
from orchestra.runs.processes import ActorsLost, RunProcesses, State
from orchestra.runs.run_directory import RunDirectory, without_secrets
from orchestra.runs.scaling import LAUNCHER, ScalingActor
from orchestra.runs.topology import Requirement, Topology
from orchestra.runs.whole_files import write_json
from orchestra.trace.format.records import Experiment
from orchestra.wire.credentials import Credentials

T = TypeVar("T")

Asked = Literal["stopped", "interrupted"]
"""The state of a run that was asked to stop."""
ABORTED = "aborted"
YOUNG = 20_000
"""Objects allocated, and not freed again, between two runs of the cycle collector: more than a full mailbox holds."""
MAIN_STOP_S = 0.7 * STOP_S
"""Seconds that the main actor of a failed run has to stop. All others have the rest of `STOP_S`."""
LAST_S = 10.0
"""Seconds for a run that has not saved to end its processes, before it is ended by force."""
ONE_PRESS_S = 0.1
"""A signal that follows another one within this time is the same press of Ctrl-C."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of the main actor of a run."""

    state: State
    """See `RunResult.state`."""
    reason: str
    """`stopped`, `aborted`, or the error with which it failed."""
    verdict: str = ""
    """The main actor and its last deliveries, for the message about a failure."""


class Stopping:
    """Asks a run to stop, from any thread. A request made before the run has begun is kept until then."""

    def __init__(self) -> None:
        self.ends_by: float | None = None
        """Time of the loop by which the run ends because it has failed; None before it has."""
        self._lock = threading.Lock()
        self._request: tuple[Asked, bool] | None = None
        self._obey: Callable[[Asked, bool], object] | None = None

    @property
    def requested(self) -> bool:
        """True once the run was asked to stop."""
        return self._request is not None

    def request(self, state: Asked = "stopped", *, abort: bool = False) -> None:
        """Ask the run to stop and save, or to abort. Without effect once it is over.

        Args:
            state: the state that the run ends with.
            abort: cancel what goes on and save nothing.
        """
        with self._lock:
            self._request = (state, abort)
            if self._obey is not None:
                self._obey(state, abort)

    @contextlib.contextmanager
    def obeyed_by(self, obey: Callable[[Asked, bool], object]) -> Iterator[None]:
        """While the block runs, have the running loop call `obey` with the state and `abort` of each request."""
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()
        with self._lock:
            # A signal that interrupts an actor, or the actor itself, calls `request` in the context of the actor.
            # There, the actor would be the sender of what `obey` sends.
            self._obey = lambda state, abort: loop.call_soon_threadsafe(obey, state, abort, context=context)
            if self._request is not None:
                self._obey(*self._request)
        try:
            yield
        finally:
            with self._lock:
                self._obey = None


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` on the fastest event loop there is."""
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    if sys.platform != "win32":
        from uvloop import new_event_loop as factory
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


@contextlib.contextmanager
def tuned_gc() -> Iterator[None]:
    """While the block runs, make the cycle collector run less often, and skip objects that exist already.

    Imported modules live as long as the process, and messages hold no cycles. With Python's defaults, a process that
    receives small messages spends a third of its time in the collector.
    """
    usual, frozen = gc.get_threshold(), gc.get_freeze_count()
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)
        if not frozen:  # else it would unfreeze the objects of the caller, too
            gc.unfreeze()


def node_of(name: str, topology: Topology, launch: RunPlan, *, deterministic: bool = False, **more: Any) -> Node:
    """Return the node `name` of a run, not yet open. `more` are arguments of `Node`."""
    experiment = None
    if launch.experiment is not None:
        digest = hashlib.sha256(launch.experiment.read_bytes()).hexdigest()
        flags = tuple(without_secrets(launch.flags))
        hosts = tuple(astuple(host) for host in launch.hosts)
        experiment = Experiment(str(launch.experiment), digest, flags, hosts, launch.code)
    for_both: dict[str, Any] = {
        "seed": launch.seed,
        "run_directory": launch.run_directory,
        "resume_from": launch.resume_from,
        "deterministic": deterministic,
    }
    recorder = launch.trace.recorder(
        name,
        RunDirectory(launch.run_directory).traces,
        clock=RealClock(),
        planned=frozenset(f"{name}/{actor.name}" for actor in topology.nodes[name].actors),
        root=name == topology.root.name,
        experiment=experiment,
        **for_both,
    )
    return Node(
        name,
        recorder=recorder,
        shared_memory=launch.shared_memory,
        unencrypted=launch.unencrypted,
        **for_both,
        **more,
    )


async def run_in_one_process(topology: Topology, launch: RunPlan, stopping: Stopping | None = None) -> Ending:
    """Run every node of `topology` in this process, over the in-memory transport.

    Offloaded work runs on the event loop, so that two runs with one seed are equal bit for bit.
    """
    main_actor = topology.main_actor()
    run = RunDirectory(launch.run_directory)
    scope = f"memory://{os.getpid()}-{id(topology)}"
    secret = os.urandom(32)
    root_address = f"{scope}-{topology.root.name}"
    async with AsyncExitStack() as stack:
        nodes: list[Node] = []
        failed: set[str] = set()
        stack.enter_context(stacks.on_request(nodes, then=lambda: None))
        stack.enter_context(recorded_on_request(nodes))
        main: Cell | None = None
        for planned in topology.nodes.values():
            node = node_of(
                planned.name,
                topology,
                launch,
                deterministic=True,
                listen=f"{scope}-{planned.name}",
                join=root_address if nodes else None,
                secret=secret,
            )
            nodes.append(await stack.enter_async_context(node.running()))
            spawn_all(topology, node, failed)
            if main is None:
                main = node.cell(main_actor)  # now: it may have ended before the last node is open
        assert main is not None
        with join_file.opened(run, None):
            ending = await _until_stopped(nodes[0], main, stopping or Stopping())
        _write_message_counts(run, [node.statistics() for node in nodes])
        for node in nodes:
            node.stopping = True
    return ending


async def run_in_processes(
    topology: Topology, launch: RunPlan, listen: str, stopping: Stopping | None = None
) -> Ending:
    """Run the root of `topology` in this process, and every other node in a process of its own on this host."""
    root = topology.root.name
    others = [name for name in topology.nodes if name != root]
    tls = None if launch.tls_dir is None else Credentials.of_folder(launch.tls_dir)
    node = node_of(root, topology, launch, listen=listen, tls=tls)
    async with node.running():
        launcher = RunProcesses(node, launch, others, requirements=topology.requirements, forks=True)
        return await run_root(topology, launch, node, launcher, stopping or Stopping())


async def run_root(
    topology: Topology,
    launch: RunPlan,
    node: Node,
    launcher: RunProcesses,
    stopping: Stopping,
    token: JoinToken | None = None,
) -> Ending:
    """Run the actors of the root, which is open, until the run ends; `launcher` keeps the other nodes running.

    Other hosts can join with `token`, if there is one.
    """
    run = RunDirectory(launch.run_directory)
    node.processes = launcher.statistics
    node.accounts.hosts = launcher.hosts
    removed: list[NodeStatistics] = []
    node.spawn(LAUNCHER, ScalingActor, topology, node, launcher, run, removed)
    spawn_all(topology, node, set())
    keeping = asyncio.create_task(launcher.run())
    state: State = "failed"
    tls_dir = "" if launch.tls_dir is None else str(launch.tls_dir)
    try:
        with (
            stacks.on_request([node], then=lambda: launcher.signal(signal.SIGUSR1)),
            recorded_on_request([node], then=lambda: launcher.signal(signal.SIGUSR2)),
            join_file.opened(run, join_file.JoinInfo(node.listening, node.secret, os.getpid(), tls_dir, token)),
        ):
            ending = await _until_stopped(node, node.cell(topology.main_actor()), stopping)
        state = ending.state
        node.stopping = True
        statistics = node.statistics()
        others = await launcher.final_statistics(statistics.peers)
        _write_message_counts(run, [statistics, *others, *removed])
    finally:
        node.stopping = True
        node.directory.close()
        asked = [peer for peer in node.peers.names if not peer.startswith(AGENT)]  # agents stop after their nodes
        for peer in asked:
            with contextlib.suppress(OrchestraError):  # it is gone, as it should be
                node.ref(f"{peer}/{SYSTEM}").tell_nowait(StopNodeMsg())
        await _stop_others(node, launcher, asked, stopping.ends_by, state)
        keeping.cancel()
        await asyncio.wait({keeping})
    return ending


async def _stop_others(
    root: Node, launcher: RunProcesses, asked: Collection[str], ends_by: float | None, state: State
) -> None:
    """Stop the processes; then, if the run has failed and ends by `ends_by`, the actors of the root."""
    if ends_by is None:
        await launcher.stop(asked, state=state)
        return
    loop = asyncio.get_running_loop()
    # Each may need its deadline twice: a process until it is killed, an actor until it is aborted.
    await launcher.stop(asked, max(ends_by - loop.time(), 0.1) / 4, state)
    await stop_actors(root.cells, deadline=max(ends_by - loop.time(), 0.1) / 4)
    root.peers.patience_s = max(ends_by - loop.time(), 0.1) / 3


@contextlib.contextmanager
def stopped_by_signals(root: str, stopping: Stopping, grace: float | None = None) -> Iterator[None]:
    """While the block runs, stop the run on signals: Ctrl-C interrupts it, SIGTERM and SIGHUP stop it.

    Ctrl-C while the run is stopping aborts it; the other signals have no further effect, since schedulers repeat them.
    A SIGHUP that is ignored, as under `nohup`, stays ignored.

    Args:
        root: the name of the root, for its log.
        stopping: stops the run.
        grace: seconds from SIGTERM until this process is ended by force; None if it is not. The run is aborted 10 s
            before, or after half of a grace below 20 s.
    """
    last = -ONE_PRESS_S
    asked = False
    giving_up: asyncio.TimerHandle | None = None

    def give_up() -> None:
        logger.error(f"the run is aborted: it has not stopped in time, and is ended by force {grace:g} s after SIGTERM")
        stopping.request("stopped", abort=True)

    def arrived(reason: str, at: float) -> None:
        nonlocal last, asked, giving_up
        again = asked
        asked = True
        if reason != _name_of(signal.SIGINT):
            if not again:
                logger.warning(f"stopping on {reason}: what is queued is handled and saved; Ctrl-C aborts")
                stopping.request("stopped")
                if grace is not None:
                    delay = max(grace - LAST_S, grace / 2)
                    giving_up = asyncio.get_running_loop().call_later(delay, give_up)
            return
        # One press may arrive twice: from the terminal, and from a wrapper that passes it on.
        since, last = at - last, at
        if since < ONE_PRESS_S:
            return
        if not again:
            logger.warning("stopping: what is queued is handled and saved; again aborts")
        stopping.request("interrupted", abort=again)

    logger = log.get(actor=f"{root}/{SYSTEM}")
    with on_signals(arrived, signal.SIGINT, *stop_signals()):
        try:
            yield
        finally:
            if giving_up is not None:
                giving_up.cancel()


def stop_signals() -> list[signal.Signals]:
    """Return the signals that stop a process in order: SIGTERM, and SIGHUP unless it is ignored."""
    return [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN]


def spawn_all(topology: Topology, node: Node, failed: set[str] | None = None) -> None:
    """Start the planned actors of `node`, which fails once too few actors that the run requires are left.

    Args:
        topology: the plan.
        node: one of its nodes.
        failed: collects the actors of this process that have failed for good. Without it, as in a launched process, the
            node fails with each of its required actors: the launcher counts.
    """

    def ended(address: str, requirement: Requirement, reason: asyncio.Future[str]) -> None:
        if reason.result() == STOPPED or node.stopping:
            return
        if failed is not None:
            failed.add(address)
        if missing := requirement.missing(lambda each: failed is None or each in failed):
            node.escalate(ActorsLost(f"{missing}; {address} failed: {reason.result()}"))

    if node.name == topology.root.name:
        node.main_actor = topology.main_actor()
        node.directory.expect(topology.nodes)
    for actor in topology.nodes[node.name].actors:
        cell = node.start_cell(actor.name, actor.factory)
        for requirement in topology.requirements:
            if cell.address in requirement.actors:
                cell.terminated.add_done_callback(partial(ended, cell.address, requirement))


async def _until_stopped(root: Node, cell: Cell, stopping: Stopping) -> Ending:
    asked: Asked | None = None

    def stop(state: Asked, abort: bool) -> None:
        nonlocal asked
        if abort:
            asked = asked or state
            cell.request_stop(graceful=False)
        elif asked is None and not cell.stopping:  # else it stops by itself: the run is complete
            asked = state
            if InterruptMsg in cell.kind.handlers:
                root.ref(cell.address).tell_nowait(InterruptMsg(state=state))
            else:
                cell.request_stop()

    # From here on a message that finds its recipient gone is no cause for alarm.
    cell.terminated.add_done_callback(lambda _: setattr(root, "stopping", True))
    with stopping.obeyed_by(stop):
        try:
            reason = await asyncio.shield(cell.terminated)
        except asyncio.CancelledError:
            # Something else failed. The main actor stops first, while the actors that it needs to save still run.
            stopping.ends_by = asyncio.get_running_loop().time() + STOP_S
            await cell.stop(MAIN_STOP_S)
            raise
    verdict = f"{cell.address} ({cell.kind.__name__}) failed; {cell.delivered.story()}"
    if reason == STOPPED:
        return Ending(asked or "completed", reason)
    return Ending(asked if asked and reason == ABORTED else "failed", reason, verdict)


def on_signals(call: Callable[[str, float], None], *signals: signal.Signals) -> AbstractContextManager[None]:
    """While the block runs, have the loop call `call` with the name and the time of each signal that arrives.

    Only the main thread can handle signals; in any other thread this does nothing. The loop's own signal handlers
    are not used: uvloop's report a signal twice that arrives while another one is handled.
    """
    loop = asyncio.get_running_loop()

    def arrived(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(call, _name_of(signal.Signals(number)), time.monotonic())

    return stacks.handling(arrived, *signals)


def _name_of(number: signal.Signals) -> str:
    return f"signal {number.name}"


def recorded_on_request(nodes: Sequence[Node], then: Callable[[], None] = lambda: None) -> AbstractContextManager[None]:
    """While the block runs, answer SIGUSR2 by writing the flight records of `nodes`; then call `then`."""

    def write(reason: str, at: float) -> None:
        for node in nodes:
            if node.recorder is not None:
                node.recorder.dump("SIGUSR2")
        then()

    return on_signals(write, signal.SIGUSR2)


def _write_message_counts(run: RunDirectory, statistics: list[NodeStatistics]) -> None:
    """Write how often each actor sent each type of message to each other actor, over the whole run."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for node in statistics:
        for flow in node.message_counts:
            counts[flow.sender, flow.type, flow.recipient] += flow.count
    rows = [{"sender": s, "type": t, "recipient": r, "count": n} for (s, t, r), n in sorted(counts.items())]
    try:
        write_json(run.message_counts, rows)
    except OSError as error:  # the run has saved what matters
        log.get(actor="run").warning(
            "cannot write how often messages were sent", path=str(run.message_counts), error=repr(error)
        )
