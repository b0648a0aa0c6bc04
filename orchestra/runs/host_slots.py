"""The head's state of each host: the reports of the engine and of its agent, and when it was lost."""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal, Protocol

from orchestra.actors import supervision
from orchestra.actors.addresses import node_of
from orchestra.actors.ref import Ref
from orchestra.actors.statistics import HostState, HostStatistics, NodeStatistics, ProcessStatistics
from orchestra.actors.supervision import Restart, RestartAfter
from orchestra.errors import CannotWrite, OrchestraError
from orchestra.hosts.fingerprint import Fingerprint
from orchestra.hosts.messages import (
    HEAD,
    AskHostMsg,
    HostedNode,
    HostMsg,
    HostUseMsg,
    LeaveMsg,
    PlaceMsg,
    PlanMsg,
    PlayedMsg,
    SignalMsg,
)
from orchestra.hosts.settings import HostSettings
from orchestra.hosts.shape import HostShape
from orchestra.hosts.transfer import FilePieceMsg
from orchestra.launch.protocol import HostEvent
from orchestra.nodes.failure_detection import HEARTBEAT_S
from orchestra.nodes.node import Node
from orchestra.runs.host_figures import HostFigures
from orchestra.runs.hosts_record import HostsRecord

AGAIN = Restart(limit=3, within=600.0, backoff=0.0)
"""The limit for requests to an engine for another agent of a slot."""

TOGETHER_S = 1.0
"""Seconds within which all processes of a job are told to end."""
CONNECTION_S = 0.2
"""Seconds for the connection of an ended agent to be closed by the system."""
AGENT_END_S = 5.0
"""Seconds for an agent to end once its nodes have."""
ARRIVAL_S = 20.0
"""Seconds from one piece of a file to the next, after which the head waits no longer for a host that sends some."""

CANNOT_WRITE = 74
"""The exit code of an agent whose disk is full."""
ANSWER_S = 8.0
"""Seconds for a host to answer with the statistics of its nodes, which have five."""
SILENT_S = 2 * HEARTBEAT_S
"""Seconds without a word from an agent after which it is silent: it has left a heartbeat unanswered."""

State = Literal["asked", "queued", "started", "joined", "playing", "leaving", "left", "gone"]
PRESENT: tuple[State, ...] = ("joined", "playing", "leaving")
"""The states of a host that has an agent."""
AgentRef = Ref[PlanMsg | PlaceMsg | SignalMsg | LeaveMsg]


class Hosted(Protocol):
    """The processes of a run, as the head places them."""

    def plan_for(self, slot: int) -> str:
        """Return the plan of the processes of a host, as text."""

    def nodes_on(self, slot: int) -> Sequence[HostedNode]:
        """Return the nodes that a host is to run."""

    def given_up(self, node: str, how: str) -> None:
        """Count a node as lost."""

    def host_joined(self, shape: HostShape) -> str:
        """Plan the nodes of a host that was not there at the start, and count those of one that is back.

        Return why the run cannot be laid out over it, too; an empty text if it can.
        """

    def host_lost(self, slot: int, how: str, cause: OrchestraError | None = None) -> None:
        """Count the nodes of a host as lost: it does not come back. `cause` is that of `fail`, if the run fails."""

    def fail(self, text: str, cause: OrchestraError | None = None) -> None:
        """End the run: too few hosts are left. Its exit code is that of `cause`, if there is one."""

    def host_leaves(self, slot: int) -> None:
        """Ask the nodes of a host that this process sees to stop; the agent asks the others."""

    def slot_of(self, node: str) -> int | None:
        """Return the host on which a node is placed; None if the run has no such node."""

    async def send_state(self, slot: int, files: Ref[FilePieceMsg]) -> None:
        """Send a host the saved state of its nodes, if the run was resumed."""


@dataclass(eq=False, slots=True)
class HostSlot:
    """One slot of a run, from its request to its end."""

    slot: int
    settings: HostSettings
    asked_at: float
    """The start of its join timeout, in seconds of the node's clock. It does not run while the host is queued."""
    record: HostsRecord
    """Records which hosts came and went."""
    changed_at: float = 0.0
    """The time at which the state changed, in seconds of the node's clock."""
    state: State = "asked"
    where: str = ""
    """The engine's description of the host."""
    reason: str = ""
    """The newest reason: from the engine, or for the end of the agent."""
    hopeless: bool = False
    """True if the engine cannot give this host, or the host cannot take part."""
    failed: str = ""
    """The reason why the host cannot take part, from its agent or from the layout of the run; empty if it can."""
    shape: HostShape | None = None
    agent: AgentRef | None = None
    told_to_end: bool = False
    """True if its agent was told to end, by a signal."""
    incarnation: str = ""
    code: int | None = None
    """The exit code of the last agent, as it or the engine says; None if neither does."""
    ended: bool = False
    """True if the last event of the engine says that the agent has ended."""
    fingerprint: Fingerprint | None = None
    """Of its last agent."""
    clock_offset_s: float | None = None
    """Seconds by which its clock was ahead of the head's when its agent joined."""
    superseded: set[str] = field(default_factory=set)
    """Incarnations of agents of this slot that a later one has replaced."""
    failures: list[float] = field(default_factory=list)
    """The times at which its agents were lost, in seconds of the node's clock."""
    nodes: dict[str, ProcessStatistics] = field(default_factory=dict)
    """The states of its processes, as the agent has reported them."""
    last_words: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Lines about the nodes that it has given up."""
    figures: HostFigures = field(default_factory=HostFigures)
    """Its steps, their rate, and their lag."""
    use: HostUseMsg | None = None
    """The last report of its agent on the use of its processors."""

    @property
    def name(self) -> str:
        """The name of the host, for people."""
        shape = self.shape
        return (shape.name if shape is not None else self.settings.name) or f"slot {self.slot}"

    @property
    def present(self) -> bool:
        """True while the host has an agent."""
        return self.state in PRESENT

    def move(self, state: State, reason: str | None = None) -> None:
        """Enter a state. A given `reason` replaces the last one."""
        if reason is not None:
            self.reason = reason
        if state != self.state:
            shape = self.shape or self.settings.shape
            self.record.changed(shape, state, where=self.where, reason=self.reason)
        self.state, self.changed_at = state, self.record.clock.monotonic()

    def take(self, msg: HostMsg, now: float) -> None:
        """Give the slot to an agent. The one that had it before is never let in again, even if it was lost already.

        Args:
            msg: the report of the agent.
            now: seconds since the epoch by the head's clock.
        """
        if self.incarnation not in ("", msg.incarnation):
            self.superseded.add(self.incarnation)
        settings = self.settings
        shape = HostShape(self.slot, settings.name or msg.name, msg.cores, msg.gpus, msg.memory)
        self.shape = shape.requested(cores=settings.cores, gpus=settings.gpus, memory=settings.memory)
        self.agent, self.incarnation, self.fingerprint = msg.agent, msg.incarnation, msg.fingerprint
        self.clock_offset_s = msg.clock - now if msg.clock else None
        self.hopeless = self.told_to_end = False
        self.failed, self.code, self.use, self.ended = "", None, None, False
        self.move("joined", reason="")
        self.nodes.clear()

    def statistics(self, root: Node, nodes: tuple[str, ...]) -> HostStatistics:
        """Return what is known of the host, which `nodes` are placed on."""
        shape = self.shape or self.settings.shape
        agent = "" if self.agent is None else node_of(self.agent.address)
        link = root.peers.find(agent) if agent else None
        now = root.clock.monotonic()
        silent_s = now - (link.heard_at if link is not None else self.changed_at)
        silent = self.present and (link is None or not link.connected or silent_s > SILENT_S)
        state: HostState = "starting" if self.state == "started" else self.state
        use = self.use if self.present else None
        return HostStatistics(
            **asdict(shape) | {"name": self.name},
            state="silent" if silent else state,
            where=self.where,
            reason=self.reason,
            since_s=now - self.changed_at,
            nodes=nodes,
            running=sum(process.running for process in self.nodes.values()),
            agent=agent if self.present else "",
            clock_offset_s=self.clock_offset_s,
            silent_s=silent_s if silent else 0.0,
            tunnel=use is not None and use.tunnel,
            cores_used=None if use is None else use.cores_used,
            env_steps=self.figures.env_steps,
            env_steps_per_s=self.figures.per_s(now),
            policy_lag=self.figures.policy_lag,
        )

    async def nodes_statistics(self, root: Node, nodes: Collection[str], *, final: bool) -> Sequence[NodeStatistics]:
        """Return the statistics of those of its nodes that answer, by one question to its agent.

        Args:
            root: asks.
            nodes: their names; empty for all.
            final: whether they are about to end.
        """
        assert self.agent is not None
        mine = tuple(node for node in self.nodes if not nodes or node in nodes)
        agent: Ref[AskHostMsg] = root.ref(self.agent.address)
        try:
            async with asyncio.timeout(ANSWER_S):
                return (await agent.ask(AskHostMsg(nodes=mine, final=final))).nodes if mine else ()
        except (OrchestraError, TimeoutError) as error:
            log = root.log.bind(actor=f"{root.name}/{HEAD}")
            log.warning("a host did not say what its nodes did", host=self.name, reason=str(error))
            return ()

    def heard(self, event: HostEvent, now: float) -> None:
        """Note an event of the engine.

        If the host cannot take part, its agent knows the reason better than the engine, whose event may come at any
        time. So the reason of the agent is kept until the engine starts the next agent.
        """
        self.where = event.where or self.where
        if self.failed and self.hopeless:
            return
        if event.state == "started" and (self.ended or self.state == "asked"):
            self.failed = ""
        self.ended = event.state == "ended"
        if not self.failed:
            self.reason = event.reason
            if event.code is not None or event.state != "ended":
                self.code = event.code
        self.hopeless = event.state == "ended" and not event.again
        if self.present or self.state in ("left", "gone"):
            return
        if event.state == "queued" or (event.state == "started" and self.state == "queued"):
            self.asked_at = now
        self.move("asked" if event.state == "ended" else event.state)

    def overdue(self, now: float, join_timeout: float) -> bool:
        """Return whether the host has not come in time."""
        return not self.present and (self.hopeless or (self.state != "queued" and now - self.asked_at >= join_timeout))

    def lost(self, now: float) -> float | None:
        """Note the loss of the agent; return the seconds to wait before another is asked for, or None for never."""
        self.failures.append(now)
        match supervision.decide(AGAIN, self.failures, now):
            case RestartAfter(delay):
                return delay
            case _:
                return None

    def cause(self, how: str) -> CannotWrite | None:
        """Return the cause of the end of a run that has lost this host, as `how` says: its disk is full, or None."""
        return CannotWrite(how) if self.code == CANNOT_WRITE else None

    def missing(self, tried: str) -> str:
        """Return why the host is missing, in words: `cpu3 (ssh: Connection refused, 4 tries)`.

        Args:
            tried: the addresses at which it could have reached the head.
        """
        where = f"{self.where}: " if self.where and self.where != self.name else ""
        if self.state == "started" and not self.reason:
            return (
                f"{self.name} ({where}started; tried {tried}, no answer: is the port open? see --port, --advertise, "
                "--tunnel)"
            )
        return f"{self.name} ({where}{self.reason or self.state})"


def hosts_missing(slots: Iterable[HostSlot], planned: int, seconds: float, tried: str) -> str:
    """Return the sentence about hosts that did not come."""
    missing = list(slots)
    named = "; ".join(slot.missing(tried) for slot in missing)
    return f"{len(missing)} of {planned} hosts did not come within {seconds:g} s: {named}. The others were let go."


def note_played(
    msg: PlayedMsg, hosted: Hosted, slots: Mapping[int, HostSlot], here: HostFigures, record: HostsRecord
) -> None:
    """Note what each host has played: the sum of its nodes.

    Args:
        msg: what the nodes have played.
        hosted: knows where they are placed. Nodes of an earlier run, which this one does not have, are left out.
        slots: the hosts with an agent.
        here: the figures of the head.
        record: keeps the figures.
    """
    steps, lags = dict[int, int](), dict[int, int | None]()
    for node, env_steps, lag in msg.nodes:
        if (number := hosted.slot_of(node)) is not None:
            steps[number] = steps.get(number, 0) + env_steps
            lags[number] = max((each for each in (lags.get(number), lag) if each is not None), default=None)
    now = record.clock.monotonic()
    for number, count in steps.items():
        slot = slots.get(number)
        figures = here if slot is None else slot.figures
        figures.note(now, count, lags[number])
        if slot is not None:
            record.played(slot.shape or slot.settings.shape, figures)
