"""The messages between the head of a run and the agents of its hosts."""

from pydantic import Field

from orchestra.actors.message import Message, Request

AGENT = "agent"
"""Name of the actor of an agent's node, and the beginning of the node's name: `agent-2-1f0c`. Topologies name no such
node."""
HEAD = "hosts"
"""Name of the actor of the root that admits agents."""


class AdmittedMsg(Message):
    """Reply to `HostMsg`."""

    slot: int = 0
    refusal: str = ""
    """Why the host is not let in; empty if it is."""
    code: int = 0
    """The exit code with which a refused agent ends."""


class HostMsg(Request[AdmittedMsg]):
    """An agent reports its host, and asks to be let in. Answered at once; the plan comes later."""

    slot: int | None
    """None if the engine does not tell: the head assigns the next number."""
    name: str
    """The name that people know the host by."""
    cores: int
    """Processors that this agent may use: affinity and quota of its control group."""
    gpus: int
    memory: int
    """Bytes."""
    pid: int
    boot_id: str
    incarnation: str
    """Differs for each process of an agent. Of two agents for one slot, the one that came last is kept."""
    fingerprint: dict[str, str] = Field(default_factory=dict)
    """Versions by name."""
    engine: str = ""
    """How the engine calls the agent: `job 4711 task 3`."""
    clock: float = 0.0
    """Seconds since the epoch, by this host's clock."""


class PlannedNodeMsg(Message):
    """A node that an agent starts."""

    name: str
    exposed: bool = False
    """Whether nodes of other hosts dial it, so that it listens beyond this host."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables of its process: numbers of threads, visible GPUs."""
    again: bool = False
    """Whether its actors begin without a saved state."""


class PlanMsg(Message):
    """The head tells an agent what its host runs. It is sent once to each incarnation of an agent."""

    run: str
    """The name of the run, for folders."""
    plan: str
    """The `RunPlan`, as text. Paths in it are those of the head."""
    nodes: tuple[PlannedNodeMsg, ...]


class PlaceMsg(Message):
    """The head changes the nodes of a host."""

    start: tuple[PlannedNodeMsg, ...] = ()
    stop: tuple[str, ...] = ()
    """Nodes that are to end, and that the head has asked to stop if they had joined."""
    asked: tuple[str, ...] = ()
    """Those of them that it has asked."""


class NodeStateMsg(Message):
    """An agent reports that the process of a node was started, has died or has ended."""

    node: str
    pid: int
    running: bool
    restarts: int
    how: str = ""
    """How its last process died; empty while it runs."""
    given_up: bool = False
    """True if it died too often and is not started again."""
    last_words: tuple[str, ...] = ()
    """Lines for the message about a failed run: the last error and the last output."""


class OutputMsg(Message):
    """Lines that processes of a host have printed."""

    lines: tuple[tuple[float, str, str], ...]
    """Of each line the seconds since the epoch by the host's clock, the node and the text."""
    dropped: int = 0
    """Lines dropped before these because too many waited."""


class LeavingMsg(Message):
    """An agent was told to end its host's part: its processes end within the grace, and then the agent does."""

    grace: float
    """Seconds until the engine ends it by force."""
    reason: str


class LeaveMsg(Message):
    """The head has an agent stop its nodes and end."""

    code: int
    """The exit code of the agent: 0 if the run is over, 75 if the host may be asked for again."""
    reason: str
    asked: tuple[str, ...] = ()
    """Nodes that the head has asked to stop; the others have not joined and are ended at once."""
    deadline: float = 10.0
    """Seconds for the nodes to stop before they are ended by force."""
