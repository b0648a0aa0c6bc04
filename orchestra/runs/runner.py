"""A run, from its topology to its end: in one process, or with a process for each node."""

import asyncio
import contextlib
import gc
import hashlib
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeVar

from orchestra import log
from orchestra.actors.cell import Cell
from orchestra.actors.restarts import STOPPED
from orchestra.actors.system_messages import (
    SYSTEM,
    FinalStatisticsMsg,
    InterruptMsg,
    NodeStatistics,
    StopNodeMsg,
)
from orchestra.clock import RealClock
from orchestra.errors import OrchestraError, UsageError
from orchestra.nodes import stacks
from orchestra.nodes.node import Node
from orchestra.runs import join_file
from orchestra.runs.processes import Launch, LocalLauncher
from orchestra.runs.run_directory import RunDirectory, without_secrets, write_json
from orchestra.runs.topology import Topology
from orchestra.trace.format.records import Experiment
from orchestra.trace.recording.recorder import Recorder
from orchestra.wire.transports import tls
from orchestra.wire.transports.registry import transport_for

T = TypeVar("T")

ANSWER_S = 5.0
"""How long a node may take to say what it did before it is left out of `message_counts.json`."""
TIDY_UP_TRIES = 20
YOUNG = 20_000
"""Objects made, and not gone again, before the cycle collector looks at them: more than wait in a full mailbox."""
ONE_PRESS_S = 0.1
"""A signal that follows another within this is the same press of Ctrl-C."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended."""

    completed: bool
    """Whether its main actor stopped by itself, or on the first Ctrl-C."""
    reason: str
    verdict: str = ""
    """The main actor, and its last deliveries: what to say of it if it failed."""


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` on the fastest event loop at hand."""
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    if sys.platform != "win32":
        from uvloop import new_event_loop as factory
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


@contextlib.contextmanager
def tuned_gc() -> Iterator[None]:
    """Have the cycle collector look at what is made from here on only, and more seldom.

    What was imported, which is most of a process, lives until its end, and messages hold no cycles. As Python comes, a
    process that receives small messages spends a third of its time on looking through both again and again.
    """
    usual = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)
        gc.unfreeze()


def recorder_of(
    node: str, topology: Topology, run: RunDirectory, launch: Launch, *, deterministic: bool
) -> Recorder | None:
    """Return what records `node` of a run, or None if nothing does."""
    digest = hashlib.sha256(launch.experiment.read_bytes()).hexdigest()
    return launch.trace.recorder(
        node,
        run.traces,
        clock=RealClock(),
        seed=launch.seed,
        deterministic=deterministic,
        planned=frozenset(f"{node}/{actor.name}" for actor in topology.nodes[node].actors),
        experiment=Experiment(str(launch.experiment), digest, tuple(without_secrets(launch.flags))),
        run_directory=run.path,
        resume_from=launch.resume_from,
    )


async def run_in_one_process(topology: Topology, run: RunDirectory, launch: Launch) -> RunResult:
    """Run every node of `topology` in this process, over the in-memory transport.

    What actors offload runs inline, so that two runs with one seed do exactly the same.
    """
    main_actor = topology.main_actor()
    scope = f"memory://{os.getpid()}-{id(topology)}"
    secret = os.urandom(32)
    root_address = f"{scope}-{topology.root.name}"
    async with AsyncExitStack() as stack:
        nodes: list[Node] = []
        stack.enter_context(stacks.on_request(nodes, then=lambda: None))
        stack.enter_context(_recorded_on_request(nodes))
        main: Cell | None = None
        for planned in topology.nodes.values():
            node = Node(
                planned.name,
                listen=f"{scope}-{planned.name}",
                join=root_address if nodes else None,
                secret=secret,
                seed=launch.seed,
                run_directory=run.path,
                resume_from=launch.resume_from,
                deterministic=True,
                recorder=recorder_of(planned.name, topology, run, launch, deterministic=True),
            )
            if not nodes:
                node.main_actor = main_actor
                node.directory.expect(topology.nodes)
            nodes.append(await stack.enter_async_context(node.running()))
            _spawn_all(topology, node)
            if main is None:
                main = node.cell(main_actor)  # now: it may have ended before the last node is open
        assert main is not None
        with join_file.opened(run, None):
            outcome = await _until_stopped(nodes[0], main)
        _write_message_counts(run, [node.statistics() for node in nodes])
        for node in nodes:
            node.stopping = True
    return outcome


async def run_in_processes(topology: Topology, run: RunDirectory, launch: Launch, listen: str) -> RunResult:
    """Run the root of `topology` in this process, and each other node in one of its own on this host."""
    main_actor = topology.main_actor()
    root = topology.root.name
    others = [name for name in topology.nodes if name != root]
    recorder = recorder_of(root, topology, run, launch, deterministic=False)
    node = Node(
        root, listen=listen, seed=launch.seed, run_directory=run.path, resume_from=launch.resume_from, recorder=recorder
    )
    node.main_actor = main_actor
    node.directory.expect(topology.nodes)
    async with node.running():
        launcher = LocalLauncher(node, launch, others)
        node.processes = launcher.statistics
        _spawn_all(topology, node)
        keeping = asyncio.create_task(launcher.run())
        try:
            with (
                stacks.on_request([node], then=lambda: launcher.signal(signal.SIGUSR1)),
                _recorded_on_request([node], then=lambda: launcher.signal(signal.SIGUSR2)),
                join_file.opened(
                    run, join_file.JoinInfo(node.listening, node.secret, os.getpid(), tls.folder_of(node.listening))
                ),
            ):
                outcome = await _until_stopped(node, node.cell(main_actor))
            node.stopping = True
            _write_message_counts(run, await _wind_up(node))
        finally:
            node.stopping = True
            node.directory.close()
            told = node.statistics().peers
            for peer in told:
                with contextlib.suppress(OrchestraError):  # it is gone, which was the point
                    node.ref(f"{peer}/{SYSTEM}").tell_nowait(StopNodeMsg())
            await launcher.stop(told)
            keeping.cancel()
            await asyncio.wait({keeping})
    return outcome


async def run_node(topology: Topology, node: Node, join: str) -> str:
    """Be a launched process until the root, at `join`, says to stop or is gone. Return the reason."""
    terminated: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def terminate(reason: str, at: float) -> None:
        if not terminated.done():
            terminated.set_result(reason)

    root_lives = False
    try:
        # Heard from before there is a socket file that a sudden end would leave behind.
        with _on_signals(terminate, signal.SIGTERM), stacks.on_request([node]), _recorded_on_request([node]):
            async with node.running():
                _spawn_all(topology, node)
                done, _ = await asyncio.wait({terminated, node.stop_requested}, return_when=asyncio.FIRST_COMPLETED)
                root_lives = node.root in node.statistics().peers
                return done.pop().result()
    finally:
        if not root_lives:
            await _tidy_up_after(join)


async def _tidy_up_after(root: str) -> None:
    """Remove what a root that was killed left at its address; whoever of its processes comes first does it."""
    for _ in range(TIDY_UP_TRIES):
        try:
            await transport_for(root).clear(root)
            return
        except UsageError:
            # Its connections are gone, but its door is not yet: the system closes one after the other.
            await asyncio.sleep(0.1)


def _spawn_all(topology: Topology, node: Node) -> None:
    for actor in topology.nodes[node.name].actors:
        node.start_cell(actor.name, actor.kind, actor.factory)


async def _until_stopped(root: Node, cell: Cell) -> RunResult:
    asked = 0
    last = -ONE_PRESS_S

    def interrupt(reason: str, at: float) -> None:
        nonlocal asked, last
        # One press may come twice: from the terminal, and from a wrapper that passes it on.
        since, last = at - last, at
        if since < ONE_PRESS_S:
            return
        asked += 1
        if asked == 1:
            log.get(actor=f"{root.name}/{SYSTEM}").warning(
                "stopping: what is queued is handled and saved; again aborts"
            )
            if InterruptMsg in cell.kind.handlers and not cell.stopping:
                root.ref(cell.address).tell_nowait(InterruptMsg())
            else:
                cell.request_stop()
        else:
            cell.request_stop(graceful=False)

    # From here on nobody shall be alarmed when a message finds its recipient gone.
    cell.terminated.add_done_callback(lambda _: setattr(root, "stopping", True))
    with _on_signals(interrupt, signal.SIGINT, signal.SIGTERM):
        try:
            reason = await asyncio.shield(cell.terminated)
        except asyncio.CancelledError:
            # Something else failed. The main actor goes first, while those that it may need to save are still there.
            await root.stop_cell(cell)
            raise
    completed = reason == STOPPED
    verdict = f"{cell.address} ({cell.kind.__name__}) failed; {cell.delivered.story()}"
    return RunResult(completed, "interrupted" if asked and completed else reason, verdict)


@contextlib.contextmanager
def _on_signals(call: Callable[[str, float], None], *signals: signal.Signals) -> Iterator[None]:
    """While the block runs, have the loop call `call` with what came, and when, once for each signal.

    Not by the loop's own signal handlers: uvloop's tell of a signal twice that comes while another one is handled.
    """
    loop = asyncio.get_running_loop()

    def come(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(call, f"signal {signal.Signals(number).name}", time.monotonic())

    before = {number: signal.signal(number, come) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


@contextlib.contextmanager
def _recorded_on_request(nodes: Sequence[Node], then: Callable[[], None] = lambda: None) -> Iterator[None]:
    """While the block runs, answer SIGUSR2 by writing what the nodes' recorders know; the root passes it on."""

    def write(reason: str, at: float) -> None:
        for node in nodes:
            if node.recorder is not None:
                node.recorder.dump("SIGUSR2")
        then()

    try:
        with _on_signals(write, signal.SIGUSR2):
            yield
    finally:
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # one that comes too late must not kill


async def _wind_up(root: Node) -> list[NodeStatistics]:
    statistics = [root.statistics()]
    for peer in statistics[0].peers:
        try:
            async with asyncio.timeout(ANSWER_S):
                statistics.append(await root.ref(f"{peer}/{SYSTEM}").ask(FinalStatisticsMsg()))
        except (OrchestraError, TimeoutError) as error:
            root.log.warning("a node did not say what it did", peer=peer, reason=str(error))
    return statistics


def _write_message_counts(run: RunDirectory, statistics: list[NodeStatistics]) -> None:
    """Write who told whom what, how often, over the whole run."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for node in statistics:
        for flow in node.message_counts:
            counts[flow.sender, flow.type, flow.recipient] += flow.count
    rows = [{"sender": s, "type": t, "recipient": r, "count": n} for (s, t, r), n in sorted(counts.items())]
    write_json(run.message_counts, rows)
