"""The runtime's own messages: what cells and nodes understand without any actor's doing."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from orchestra.actors.message import Lane, Message, Request
from orchestra.actors.ref import Ref

SYSTEM = "system"
"""The name of the actor that every node has, and that speaks for the node itself."""


class WatchMsg(Message):
    """Tell `watcher` when the recipient terminates."""

    lane: ClassVar[Lane] = Lane.SYSTEM
    watcher: Ref[Any]


class TerminatedMsg(Message):
    """A watched actor is gone: it stopped, it failed for good, or its node is lost."""

    lane: ClassVar[Lane] = Lane.SYSTEM
    address: str
    reason: str
    graceful: bool
    """Whether it stopped because it, or somebody, wanted it to."""
    lost: bool = False
    """Whether its node is lost, so that nobody knows how it ended."""


class StopMsg(Message):
    """Stop the recipient: gracefully, once what is queued has been handled, or at once."""

    lane: ClassVar[Lane] = Lane.SYSTEM
    graceful: bool = True


class InterruptMsg(Message):
    """Ctrl-C, or SIGTERM: a main actor that handles this is told instead of stopped, and stops itself when it can."""

    lane: ClassVar[Lane] = Lane.SYSTEM


class ChildFailedMsg(Message):
    """A child of the recipient failed for good: the recipient fails with it, and its own policy decides."""

    lane: ClassVar[Lane] = Lane.SYSTEM
    address: str
    reason: str
    """What the failure says of itself."""


class HaltMsg(Message):
    """End this incarnation after the message in hand: a sibling failed. A cell tells only itself."""

    lane: ClassVar[Lane] = Lane.SYSTEM


class WithdrawnMsg(Message):
    """Stands in a mailbox in the place of a request whose asker has given up."""


class SpawnedMsg(Message):
    """An actor was started, or why it was not."""

    address: str = ""
    refusal: str = ""


class SpawnMsg(Request[SpawnedMsg]):
    """Start an actor on this node."""

    lane: ClassVar[Lane] = Lane.SYSTEM
    name: str
    kind: str
    """The class, as `module:qualname`."""
    parent: str
    """With whom it ends, and who hears of its failures; an actor of another node."""
    args: list[Any]
    kwargs: dict[str, Any]


class StopActorMsg(Request[tuple[str, ...]]):
    """Stop an actor of this node, gracefully if it can; answered, once it has, with what failed on the way."""

    lane: ClassVar[Lane] = Lane.SYSTEM
    address: str


class DeadlockProbeMsg(Message):
    """Follows asks that wait for each other, from node to node, to find a circle of them."""

    lane: ClassVar[Lane] = Lane.SYSTEM
    askers: Annotated[tuple[str, ...], Field(min_length=1)]
    """Who waits for whom."""
    asks: tuple[int, ...]
    """By which ask each of them does, by the count of its node."""
    recipient: str
    """The actor that the last of them asks."""


class LookupMsg(Request[str]):
    """Where does this node listen? Answered once it has registered."""

    lane: ClassVar[Lane] = Lane.SYSTEM
    node: str


class StopNodeMsg(Message):
    """Stop the whole node gracefully."""

    lane: ClassVar[Lane] = Lane.SYSTEM


class MailboxStatistics(Message):
    """What waits."""

    depth: int
    """Messages queued."""
    nbytes: int
    capacity: int
    waiting: int
    """Senders on this node that wait for room."""


class CellStatistics(Message):
    """One actor of a node."""

    address: str
    kind: str
    """Its class."""
    mailbox: MailboxStatistics
    handled: int
    restarts: int
    busy_s: float
    """Seconds spent with messages, those of waiting in the middle of one included."""
    state: Literal["idle", "handling", "waiting", "restarting", "stopping"]
    """`waiting` is in the middle of a message; an actor without one is idle."""
    message: str
    """The type of the message that it is busy with; empty if none."""
    sender: str
    """Who told that message."""
    for_s: float
    """Seconds since it began with that message; for a plain `def`, since it last had nothing to do, or a bit later."""
    waits_for: tuple[str, ...]
    """What has to happen before it goes on, in words: `asks host-0/proxy`, `in a thread: Qmix.learn`."""
    withdrawn: int = 0
    """Requests whose asker gave up: dropped unread, or broken off."""


class LinkStatistics(Message):
    """A connection to another node, as one side sees it. Counts are of messages and answers, since it opened."""

    peer: str
    state: Literal["open", "broken"]
    """Whether there is a connection now; a session outlives one that breaks, for a while."""
    unacknowledged: int
    """Frames that the peer may lack, kept in case the connection breaks."""
    round_trip_s: float | None
    """From a heartbeat to its answer, the last time; None before the first."""
    sent: int
    sent_bytes: int
    received: int
    received_bytes: int
    in_flight: int
    """Messages sent that have not left the mailboxes of the peer: credit in use."""
    in_flight_bytes: int
    credit_used: float
    """The share of its credit that the recipient with the least of it left has used; 1.0 lets nothing more through."""
    waiting: int
    """Senders of this node that wait for credit."""
    memory: str = ""
    """How large arrays go to the peer: empty as long as there was none, `offered`, `shared`, or why not by memory."""
    memory_sent_bytes: int = 0
    """Of `sent_bytes`, those that went by shared memory."""
    memory_held_bytes: int = 0
    """Bytes of this side's arena that the peer has not given back: it looks at them, or has yet to."""


class Flow(Message):
    """How many messages of one type went from one address to another. Counted where they are handled."""

    sender: str
    type: str
    recipient: str
    count: int


class ProcessStatistics(Message):
    """A launched process."""

    node: str
    pid: int
    running: bool
    restarts: int
    given_up: bool
    """It died too often and is not started again."""


class NodeStatistics(Message):
    """One process."""

    node: str
    cells: tuple[CellStatistics, ...]
    message_counts: tuple[Flow, ...]
    dead_letters: int
    peers: tuple[str, ...]
    """The nodes it is connected to."""
    links: tuple[LinkStatistics, ...]
    pid: int
    at_s: float
    """When this was said, on a clock of this process that never goes backwards: for rates."""
    cpu_s: float
    """Seconds of processor time that the process has used."""
    rss: int
    """Bytes of memory that the process occupies."""
    lag_s: float
    """How much later than due its event loop came to a heartbeat, the worst of the last few; 0 without heartbeats."""
    tasks: int
    """Tasks of its event loop that are not done."""
    processes: tuple[ProcessStatistics, ...] = ()
    """What this node launched; only the root launches."""


class FinalStatisticsMsg(Request[NodeStatistics]):
    """The run is over: say what was done, and take no alarm at others that stop before you."""

    lane: ClassVar[Lane] = Lane.SYSTEM


class StatisticsMsg(Request[NodeStatistics]):
    """How is this node doing?"""

    lane: ClassVar[Lane] = Lane.SYSTEM
