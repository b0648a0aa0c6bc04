"""What an agent does on its host for one session with the head: folders, code, and the processes of nodes."""

import asyncio
import signal
from collections.abc import Collection, Mapping
from dataclasses import replace

from orchestra.errors import CannotWrite, OrchestraError
from orchestra.hosts.descendants import NODE_VARIABLE
from orchestra.hosts.keeper import Keeper
from orchestra.hosts.messages import HEAD, HostedNode, NodeStateMsg, PlaceMsg, PlanMsg
from orchestra.hosts.output import OutputBuffer
from orchestra.hosts.run_plan import RunPlan
from orchestra.hosts.scratch import Scratch
from orchestra.hosts.token import JoinToken
from orchestra.nodes.node import Node

RUN, LOGS, TRACES = "run", "logs", "traces"
"""The folder of the run below that of the agent, and folders in it, as in a run directory."""
STOP_S = 5.0
"""Seconds for nodes to end that nobody has asked to stop."""


class HostWork:
    """The nodes of a host in one session, from their plan to their end.

    Args:
        node: of the agent.
        token: lets the nodes into the run.
        scratch: the folders of the agent.
        output: takes what the processes print and log.
    """

    def __init__(self, node: Node, token: JoinToken, scratch: Scratch, output: OutputBuffer) -> None:
        self._node = node
        self._token = token
        self._scratch = scratch
        self._output = output
        self._keeper: Keeper | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._nodes: dict[str, HostedNode] = {}
        self._head = node.ref(f"{node.root}/{HEAD}")
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done, with the error, if this host cannot take part."""

    async def begin(self, msg: PlanMsg) -> None:
        """Make the folders, and start the nodes of the plan."""
        folder = self._scratch.folder / RUN
        try:
            for name in (LOGS, TRACES):
                (folder / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._fail(CannotWrite(f"cannot make a folder in {str(folder)!r}: {error.strerror or error}"))
            return
        plan = replace(RunPlan.read(msg.plan), run_directory=folder, log_to_output=True)
        self._nodes = {hosted.name: hosted for hosted in msg.nodes}
        self._keeper = Keeper(
            self._node,
            plan,
            folder / LOGS,
            lambda: self._token.address,
            self._given_up,
            forks=True,
            listen=self._listen,
            environment=self._environment,
            changed=self._changed,
            sink=self._output.add,
        )
        self._keeping = asyncio.create_task(self._keeper.run([]), name=f"{self._node.name}: keeper")
        await asyncio.sleep(0)  # it has begun
        self._start(msg.nodes)

    def place(self, msg: PlaceMsg) -> None:
        """Start and stop nodes as the head says."""
        if self._keeper is None:
            return  # this host cannot take part, and ends
        self._nodes |= {hosted.name: hosted for hosted in msg.start}
        self._start(msg.start)
        if msg.stop:
            task = asyncio.create_task(self._stop(msg.stop, msg.asked))
            task.add_done_callback(lambda done: done.result())

    def signal(self, number: signal.Signals, nodes: Collection[str]) -> None:
        """Send a signal to the processes of nodes."""
        if self._keeper is not None:
            self._keeper.signal(number, nodes)

    async def end(self, asked: Collection[str] = (), deadline: float = STOP_S) -> None:
        """End the nodes, those that were `asked` to stop after a deadline."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            assert self._keeping is not None
            await keeper.stop(asked, deadline)
            self._keeping.cancel()
            await asyncio.wait({self._keeping})

    def _fail(self, error: OrchestraError) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)

    def _start(self, nodes: Collection[HostedNode]) -> None:
        assert self._keeper is not None
        for again in (False, True):
            self._keeper.add([hosted.name for hosted in nodes if hosted.again == again], again=again)

    async def _stop(self, nodes: Collection[str], asked: Collection[str]) -> None:
        assert self._keeper is not None
        await self._keeper.remove(list(nodes), asked=asked)
        for node in nodes:
            self._nodes.pop(node, None)
            self._tell(NodeStateMsg(agent=self._node.name, node=node, pid=0, running=False, restarts=0, removed=True))

    def _listen(self, node: str) -> str:
        return self._scratch.socket_address(node)

    def _environment(self, node: str) -> Mapping[str, str]:
        return {NODE_VARIABLE: node, **self._nodes[node].environment}

    def _changed(self, node: str) -> None:
        assert self._keeper is not None
        self._report(self._keeper, node)

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

    def _tell(self, msg: NodeStateMsg) -> None:
        try:
            self._head.tell_nowait(msg)
        except OrchestraError as error:  # a head that is gone needs no report, and this session ends
            self._node.log.info("the head was not told of a process", process=msg.node, reason=str(error))
