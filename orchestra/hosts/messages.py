"""The messages between the head of a run and the agents of its hosts."""

from typing import Any, ClassVar

from pydantic import Field

from orchestra.actors.message import Lane, Message, Request
from orchestra.actors.ref import Ref
from orchestra.actors.statistics import NodeStatistics
from orchestra.hosts.fingerprint import Fingerprint

AGENT = "agent"
"""Name of the actor of an agent. Its node is `agent-<slot>-<digits>`: two agents of one slot have different names."""
HEAD = "hosts"
"""Name of the actor of the root that lets agents in."""


class AdmittedMsg(Message):
    """Reply to `HostMsg`."""

    slot: int = 0
    refusal: str = ""
    """The reason why the host is not let in; empty if it is."""
    code: int = 0
    """The exit code with which a refused agent ends."""
    rejoin: bool = False
    """As in `LeaveMsg`, for a refused agent."""
    grace: float = 120.0
    """Seconds from SIGTERM until the engine ends the agent by force."""
    orphan_timeout: float = 300.0
    """Seconds for which the agent looks for a head that is silent."""


class HostMsg(Request[AdmittedMsg]):
    """An agent reports its host, and asks to be let in. Answered at once; the plan comes later."""

    agent: Ref[Any]
    """The actor of the agent."""
    slot: int | None
    """None if the engine does not tell: the head assigns the next number."""
    name: str
    """The name of the host for people."""
    cores: int
    gpus: int
    memory: int
    """Bytes."""
    pid: int
    incarnation: str
    """Differs for each process of an agent. Of two agents for one slot, the one that came last is kept."""
    fingerprint: Fingerprint
    engine: str = ""
    """The engine's name for the agent: `job 4711 task 3`."""
    clock: float = 0.0
    """Seconds since the epoch, by this host's clock."""


class HostedNode(Message):
    """A node that an agent keeps."""

    name: str
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables of its process: numbers of threads, visible GPUs."""
    again: bool = False
    """True if its actors begin without a saved state."""
    beyond: str = ""
    """The address at which it listens for nodes of other hosts; empty if none of them dials it."""


class CodeKnownMsg(Message):
    """Reply to `CodeMsg`."""

    known: bool
    """True if the host has the code already."""


class CodeMsg(Request[CodeKnownMsg]):
    """The head announces the code of the run, which follows as a file unless the host has it."""

    digest: str
    nbytes: int
    """The space that it takes when it is unpacked."""


class PlanMsg(Message):
    """The head tells an agent what its host runs, once in each session."""

    run: str
    """The name of the run, for folders."""
    plan: str
    """The `RunPlan`, as text. Its paths are those of the head."""
    digest: str
    """The digest of the code, which the host has by now."""
    nodes: tuple[HostedNode, ...]


class PlaceMsg(Message):
    """The head has an agent start and stop nodes."""

    start: tuple[HostedNode, ...] = ()
    stop: tuple[str, ...] = ()


class SignalMsg(Message):
    """The head passes on SIGUSR1 or SIGUSR2 to nodes, all of which have joined and handle it."""

    number: int
    nodes: tuple[str, ...]


class NodeStateMsg(Message):
    """An agent reports that the process of a node was started, has died or has ended."""

    agent: str
    """The node of the agent."""
    node: str
    pid: int
    running: bool
    restarts: int
    given_up: str = ""
    """The way in which its process died, if it died too often and is not started again; else empty."""
    removed: bool = False
    """True if it ended because the head had it stopped."""
    last_words: tuple[str, ...] = ()
    """Lines for the message about a failed run: the last error and the last output of a node that was given up."""


class HostFailedMsg(Request[None]):
    """An agent is about to end because its host cannot run what the plan says. Answered once the head knows."""

    agent: str
    """The node of the agent."""
    reason: str
    code: int
    """The exit code with which it ends: 74 on a full disk, where another attempt may succeed."""


class HostUseMsg(Message):
    """An agent reports every few seconds what its nodes use, and how it reaches the head."""

    lane: ClassVar[Lane] = Lane.LATEST

    agent: str
    """The node of the agent."""
    cores_used: float | None
    """Processors that the processes of its nodes use; None before two measurements."""
    tunnel: bool
    """True if its connection to the head goes through ssh."""


class PlayedMsg(Message):
    """The figures of the nodes of a run so far, from the experience that has reached the learner."""

    lane: ClassVar[Lane] = Lane.LATEST

    nodes: tuple[tuple[str, int, int | None], ...]
    """Of each: its name, its environment steps, and the largest policy lag of a step in its newest experience, in
    versions; None before the first parameters."""


class HostStatisticsMsg(Message):
    """Reply to `AskHostMsg`."""

    nodes: tuple[NodeStatistics, ...]


class AskHostMsg(Request[HostStatisticsMsg]):
    """Return the statistics of the nodes of a host that answer."""

    nodes: tuple[str, ...]
    """Their names; empty for all."""
    final: bool = False
    """True if the nodes are about to end, and expect others to disappear."""


class LeavingMsg(Message):
    """An agent was told by its engine, or by its user, to end."""

    agent: str
    """The node of the agent."""
    grace: float
    """Seconds until it is ended by force."""


class LeftMsg(Message):
    """Reply to `LeaveHostMsg`."""

    refusal: str = ""
    """The reason why no host leaves; empty once its agent has ended."""


class LeaveHostMsg(Request[LeftMsg]):
    """A user has a host leave the run."""

    slot: int


class LeaveMsg(Message):
    """The head has an agent stop its nodes and end."""

    code: int
    """The exit code of the agent: 0 if the run is over, 75 if the host may be asked for again."""
    reason: str
    deadline: float = 10.0
    """Seconds for the nodes to stop before they are ended by force."""
    rejoin: bool = False
    """True if the run may go on under another head: an agent that dials on looks for that instead of ending."""
