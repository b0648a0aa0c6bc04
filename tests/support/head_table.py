"""The head of a run over hosts, with agents, an engine and processes that exist on paper."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from orchestra import Actor, Node, on
from orchestra.clock import RealClock
from orchestra.errors import OrchestraError
from orchestra.hosts.bundle import Bundle
from orchestra.hosts.fingerprint import fingerprint
from orchestra.hosts.messages import (
    AdmittedMsg,
    CodeKnownMsg,
    CodeMsg,
    HostedNode,
    HostMsg,
    LeaveMsg,
    PlanMsg,
)
from orchestra.hosts.output import HostLogs
from orchestra.hosts.run_plan import RunPlan
from orchestra.hosts.shape import HostShape
from orchestra.launch.protocol import HostEvent, HostRequest, Submission
from orchestra.runs.head import Head
from orchestra.runs.hosts_options import HostsOptions, hosts_options
from orchestra.runs.runner import Stopping

Run = Callable[[Coroutine[Any, Any, None]], None]


class Engine:
    """A launcher that notes what it is asked for."""

    name = "local"
    replaces = False

    def __init__(self) -> None:
        self.asked_for: asyncio.Queue[int] = asyncio.Queue()

    def submission(self, plan: RunPlan, requests: Sequence[HostRequest]) -> Submission:
        return Submission({}, ())

    async def start(self, submission: Submission, token: str) -> None:
        return

    async def events(self) -> AsyncIterator[HostEvent]:
        return
        yield

    async def again(self, slot: int) -> None:
        self.asked_for.put_nowait(slot)

    async def stop(self, deadline: float) -> None:
        return


class Placed:
    """Processes that exist on paper."""

    def __init__(self) -> None:
        self.lost: list[tuple[int, str]] = []
        self.joined: list[int] = []
        self.failures: list[str] = []
        self.causes: list[OrchestraError | None] = []
        self.lost_nodes: list[tuple[str, str]] = []
        self.cores_needed = 0

    def plan_for(self, slot: int) -> str:
        return "{}"

    def nodes_on(self, slot: int) -> Sequence[HostedNode]:
        return ()

    def given_up(self, node: str, how: str) -> None:
        self.lost_nodes.append((node, how))

    def host_joined(self, shape: HostShape) -> str:
        if shape.cores < self.cores_needed:
            return f"the nodes of the run need more:\n  {shape.name}  cores {self.cores_needed}"
        self.joined.append(shape.slot)
        return ""

    def host_lost(self, slot: int, how: str, cause: OrchestraError | None = None) -> None:
        self.causes.append(cause)
        self.lost.append((slot, how))

    def fail(self, text: str, cause: OrchestraError | None = None) -> None:
        self.failures.append(text)
        self.causes.append(cause)

    def host_leaves(self, slot: int) -> None:
        return

    def slot_of(self, node: str) -> int | None:
        return {"learner": 0, "host-1": 1, "worker-1-0": 1, "host-2": 2}.get(node)

    async def send_state(self, slot: int, files: Any) -> None:
        return


class Listener(Actor[CodeMsg | PlanMsg | LeaveMsg]):
    """In the place of an agent's actor, on a host that has the code."""

    def __init__(self, heard: "asyncio.Queue[LeaveMsg]") -> None:
        self._heard = heard

    @on(CodeMsg)
    def code(self, msg: CodeMsg) -> CodeKnownMsg:
        return CodeKnownMsg(known=True)

    @on(PlanMsg)
    def begin(self, msg: PlanMsg) -> None:
        return

    @on(LeaveMsg)
    def leave(self, msg: LeaveMsg) -> None:
        self._heard.put_nowait(msg)


class Table:
    """A head whose agents are actors of its own node."""

    def __init__(self, root: Node, code: Bundle, folder: Path, **options: Any) -> None:
        given = hosts_options({"hosts": "3", "launch": "local", **options})
        assert isinstance(given, HostsOptions)
        self.options = given
        self.root = root
        self.engine = Engine()
        self.placed = Placed()
        self.stopping = Stopping()
        self.told: dict[str, asyncio.Queue[LeaveMsg]] = {}
        logs = HostLogs(folder, RealClock())
        self.head = Head(root, "a-run", given, self.engine, lambda: "10.0.0.5:41000", logs, code, self.stopping)

    def arrives(self, slot: int | None, agent: str, incarnation: str = "", **more: Any) -> AdmittedMsg:
        heard = self.told.setdefault(agent, asyncio.Queue())
        ref = self.root.spawn(agent, Listener, heard)
        message = HostMsg(
            agent=ref,
            slot=slot,
            name=f"machine-{agent}",
            cores=4,
            gpus=0,
            memory=1 << 30,
            pid=7,
            incarnation=incarnation or agent,
            fingerprint=OWN,
        )
        return self.head.admit(message.model_copy(update=more) if more else message)

    def states(self) -> dict[int, str]:
        return {number: slot.state for number, slot in self.head.slots.items()}


OWN = fingerprint()


def at_a_table(run: Run, code: Bundle, folder: Path, test: Callable[[Table], Any], **options: Any) -> None:
    async def main() -> None:
        root = Node("learner")
        async with root.running():
            table = Table(root, code, folder, **options)
            result = test(table)
            if asyncio.iscoroutine(result):
                await result
            table.head._agents.clear()  # nobody reports the end of agents that are none
            await table.head.end(0, "the test is over", deadline=1.0)

    run(main())
