"""The work of an agent on its host in one session with the head: folders, code, and the processes of nodes."""

import asyncio
import contextlib
import contextvars
import os
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestra.actors.ref import Ref
from orchestra.actors.statistics import FinalStatisticsMsg, NodeStatistics, StatisticsMsg
from orchestra.actors.system_messages import SYSTEM, StopNodeMsg
from orchestra.errors import CannotWrite, OrchestraError
from orchestra.hosts.bundle import Bundle, UnpackedCode
from orchestra.hosts.fork_server import Base
from orchestra.hosts.keeper import Keeper
from orchestra.hosts.messages import (
    HEAD,
    AskHostMsg,
    CodeKnownMsg,
    CodeMsg,
    HostedNode,
    HostFailedMsg,
    HostStatisticsMsg,
    HostUseMsg,
    NodeStateMsg,
    PlaceMsg,
    PlanMsg,
)
from orchestra.hosts.output import OutputBuffer
from orchestra.hosts.reach import Reach
from orchestra.hosts.run_plan import RunPlan
from orchestra.hosts.scratch import Scratch, check_room
from orchestra.hosts.transfer import FILES, Files, SendFilesMsg, found
from orchestra.hosts.use import LEAST_S, ProcessorUse
from orchestra.nodes.dialling import TUNNEL
from orchestra.nodes.node import Node
from orchestra.trace.format.records import TABLE

RUN, LOGS, TRACES, STATE, ARCHIVE = "run", "logs", "traces", "state", "code.zip"
"""The folder of the run below that of the agent; folders in it, as in a run directory; and the code as it arrives."""
SENT = ".sent"
"""Ending of an empty file in place of a trace that was sent."""
ANSWER_S = 5.0
"""Seconds for a node to answer with its statistics."""
STOP_S = 5.0
"""Seconds for nodes to end if they were not asked to stop."""
FAILED, CANNOT_WRITE = 1, 74
"""Exit codes of the agent."""
USE_S = 5.0
"""Seconds between two reports of what the nodes use."""


class HostWork:
    """The nodes of a host in one session, from their plan to their end.

    Args:
        node: of the agent.
        scratch: the folders of the agent.
        output: takes what the processes print and log.
    """

    def __init__(self, node: Node, scratch: Scratch, output: OutputBuffer) -> None:
        self._node = node
        self._scratch = scratch
        self._output = output
        self._folder = scratch.folder / RUN
        node.spawn(FILES, Files, self._folder)
        self._keeper: Keeper | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._beginning: asyncio.Task[None] | None = None
        self._measuring: asyncio.Task[None] | None = None
        self._nodes: dict[str, HostedNode] = {}
        self._sending: set[asyncio.Task[None]] = set()
        """Traces of nodes that have ended, on their way to the head."""
        self._head = node.ref(f"{node.root}/{HEAD}")
        self.reach = Reach(node)
        """Checks which hosts can be reached, before the plan comes."""
        self._failing: asyncio.Task[None] | None = None
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done, with the error, if this host cannot take part."""

    def code(self, msg: CodeMsg) -> CodeKnownMsg:
        """Return whether this host has the code of the run. Fail the host if it has no room for the code."""
        try:
            if self._scratch.known_code(msg.digest) is not None:
                return CodeKnownMsg(known=True)
            check_room(self._scratch.home, 2 * msg.nbytes)  # the archive lies there, too
        except OrchestraError as error:
            self._fail(error)
        return CodeKnownMsg(known=False)

    def _unpacked(self, msg: PlanMsg) -> UnpackedCode:
        """Unpack the code of the run, and make the folders.

        Raises:
            CannotWrite: there is no room.
            UsageError: it is no code of a run.
        """
        try:
            for name in (LOGS, TRACES):
                (self._folder / name).mkdir(parents=True, exist_ok=True)
            code = self._scratch.known_code(msg.digest)
            if code is None:
                archive = self._folder / ARCHIVE
                code = self._scratch.code(Bundle.read(archive.read_bytes()))
                archive.unlink()
            return code
        except OSError as error:
            raise CannotWrite(f"cannot write in {str(self._folder)!r}: {error.strerror or error}") from error

    def begin(self, msg: PlanMsg) -> None:
        """Prepare what all processes need, once, and start the nodes of the plan."""
        self._beginning = asyncio.create_task(self._begin(msg))
        self._beginning.add_done_callback(self._has_begun)

    def _has_begun(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    async def _begin(self, msg: PlanMsg) -> None:
        await self.reach.close()
        code = await asyncio.to_thread(self._unpacked, msg)
        plan = RunPlan.read(msg.plan)
        resume_from = None if plan.resume_from is None else self._folder / STATE / plan.resume_from.name
        plan = replace(
            plan,
            experiment=code.experiment,
            run_directory=self._folder,
            resume_from=resume_from,
            log_to_output=True,
        )
        environment = code.environment(os.environ)
        self._nodes = {hosted.name: hosted for hosted in msg.nodes}
        self._keeper = Keeper(
            self._node,
            plan,
            self._folder / LOGS,
            lambda: self._node.listening,
            self._given_up,
            forks=True,
            listen=self._listen,
            beyond=lambda node: self._nodes[node].beyond,
            environment=self._environment,
            changed=self._changed,
            sink=self._output.add,
            base=Base(environment, code.project if code.project.is_dir() else code.folder),
        )
        if how := await self._keeper.prepare():
            raise OrchestraError(f"this host cannot run {msg.run}: {how}")
        if self._keeper is None:
            return  # it has ended meanwhile
        self._keeping = asyncio.create_task(self._keeper.run([]), name=f"{self._node.name}: keeper")
        self._measuring = asyncio.create_task(self._report_use(self._keeper), name=f"{self._node.name}: use")
        await asyncio.sleep(0)  # it has begun
        self._start(self._nodes.values())

    def place(self, msg: PlaceMsg) -> None:
        """Start and stop nodes as the head says."""
        if self._keeper is None:
            return  # this host cannot take part, and ends
        self._nodes |= {hosted.name: hosted for hosted in msg.start}
        if self._keeping is not None:  # else they start with the others
            self._start(msg.start)
        if msg.stop:
            task = asyncio.create_task(self._stop(msg.stop))
            task.add_done_callback(lambda done: done.result())

    def signal(self, number: signal.Signals, nodes: Collection[str]) -> None:
        """Send a signal to the processes of nodes."""
        if self._keeper is not None:
            self._keeper.signal(number, nodes)

    async def statistics(self, msg: AskHostMsg) -> HostStatisticsMsg:
        """Return the statistics of nodes that have joined and answer."""
        nodes = [node for node in self._joined() if not msg.nodes or node in msg.nodes]
        request = FinalStatisticsMsg() if msg.final else StatisticsMsg()

        async def of(node: str) -> NodeStatistics | None:
            with contextlib.suppress(OrchestraError, TimeoutError):
                async with asyncio.timeout(ANSWER_S):
                    answer: NodeStatistics = await self._node.ref(f"{node}/{SYSTEM}").ask(request)
                    return answer
            return None

        found = await asyncio.gather(*map(of, nodes))
        return HostStatisticsMsg(nodes=tuple(each for each in found if each is not None))

    async def end(self, deadline: float | None = None) -> None:
        """End the nodes: in order, and by force after a deadline; at once if there is none. Send their traces."""
        keeper, self._keeper = self._keeper, None
        await self.reach.close()
        if keeper is None:
            return
        asked = [] if deadline is None else self._joined()
        for node in asked:
            with contextlib.suppress(OrchestraError):  # it has ended
                self._node.ref(f"{node}/{SYSTEM}").tell_nowait(StopNodeMsg())
        if self._measuring is not None:
            self._measuring.cancel()
        await keeper.stop(asked, STOP_S if deadline is None else deadline)
        if self._beginning is not None:
            self._beginning.cancel()
            await asyncio.wait({self._beginning})
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait({self._keeping})
        if self._sending:
            await asyncio.wait(self._sending)
        if deadline is not None:
            await self._send_traces(self._traces("*"))

    def _traces(self, pattern: str) -> list[str]:
        """Return the files of traces that have not been sent."""
        files = found(self._folder, [f"{TRACES}/{pattern}"])
        return [f"{TRACES}/{path.name}" for path in files if path.suffix not in (SENT, TABLE)]

    async def _send_traces(self, patterns: Sequence[str]) -> None:
        files: Ref[SendFilesMsg] = self._node.ref(f"{self._node.name}/{FILES}")
        to: Ref[Any] = Ref(f"{self._node.root}/{FILES}")
        try:
            sent = await files.ask(SendFilesMsg(patterns=tuple(patterns), to=to, move=True))
        except OrchestraError as error:
            self._node.log.warning("traces of this host were not sent", error=str(error))
        else:
            if sent.error:
                self._node.log.warning("traces of this host were not sent", error=sent.error)

    def _joined(self) -> list[str]:
        """Return the nodes of this host that have joined."""
        return [node for node in self._node.peers.names if node in self._nodes]

    def _fail(self, error: BaseException) -> None:
        """Have the agent end once the head has its report: the head may get no other report of this host."""
        if self._failing is None:
            # In a context of its own: the head may wait for the handler that has found this out.
            self._failing = asyncio.get_running_loop().create_task(
                self._tell_failure(error), context=contextvars.Context()
            )

    async def _tell_failure(self, error: BaseException) -> None:
        reason, code = str(error) or repr(error), CANNOT_WRITE if isinstance(error, CannotWrite) else FAILED
        with contextlib.suppress(OrchestraError):  # a head that is gone needs no report
            await self._head.ask(HostFailedMsg(agent=self._node.name, reason=reason, code=code))
        self.failed.set_exception(error)
        self.failed.exception()  # retrieved: the agent may end for another reason

    def _start(self, nodes: Collection[HostedNode]) -> None:
        assert self._keeper is not None
        for again in (False, True):
            self._keeper.add([hosted.name for hosted in nodes if hosted.again == again], again=again)

    async def _stop(self, nodes: Collection[str]) -> None:
        assert self._keeper is not None
        await self._keeper.remove(list(nodes))
        for node in nodes:
            self._nodes.pop(node, None)
            self._tell(NodeStateMsg(agent=self._node.name, node=node, pid=0, running=False, restarts=0, removed=True))

    def _listen(self, node: str) -> str:
        return self._scratch.socket_address(node)

    def _environment(self, node: str) -> Mapping[str, str]:
        hosted = self._nodes.get(node)  # none for the process that prepares
        return hosted.environment if hosted is not None else {}

    def _changed(self, node: str) -> None:
        keeper = self._keeper
        if keeper is None:
            return  # the session ends: the head knows, and all traces are sent at once
        self._report(keeper, node)
        traces = self._traces(f"{node}.*")
        if traces and not keeper.state(node).running:
            for trace in traces:  # its next process sees that the name is taken, and uses another one
                (self._folder / trace).with_suffix(SENT).touch()
            task = asyncio.create_task(self._send_traces(traces))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    def _given_up(self, node: str, how: str) -> None:
        assert self._keeper is not None
        self._report(self._keeper, node, how)

    def _report(self, keeper: Keeper, node: str, given_up: str = "") -> None:
        state = keeper.state(node)
        words = tuple(keeper.last_words(node)) if given_up else ()
        self._tell(
            NodeStateMsg(
                agent=self._node.name,
                node=node,
                pid=state.pid,
                running=state.running,
                restarts=state.restarts,
                given_up=given_up,
                last_words=words,
            )
        )

    async def _report_use(self, keeper: Keeper) -> None:
        """Report what the nodes use, and how this host reaches the head, until it is cancelled."""
        use, pause = ProcessorUse(), LEAST_S
        while True:
            pids = [state.pid for state in keeper.statistics() if state.running]
            cores = use.measured(self._node.clock.monotonic(), pids)
            link = self._node.peers.find(self._node.root)
            tunnel = link is not None and link.reached.startswith(TUNNEL)
            self._tell(HostUseMsg(agent=self._node.name, cores_used=cores, tunnel=tunnel))
            await asyncio.sleep(pause)
            pause = USE_S

    def _tell(self, msg: NodeStateMsg | HostUseMsg) -> None:
        try:
            self._head.tell_nowait(msg)
        except OrchestraError as error:  # a head that is gone needs no report, and this session ends
            self._node.log.info("the head was not told", type=type(msg).__name__, reason=str(error))
