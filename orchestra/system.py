"""The runtime's own messages: what cells and nodes understand without any actor's doing."""

from typing import Any, ClassVar

from orchestra.message import Lane, Message, Request
from orchestra.ref import Ref


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


class StopMsg(Message):
    """Stop the recipient: gracefully, once what is queued has been handled, or at once."""

    lane: ClassVar[Lane] = Lane.SYSTEM
    graceful: bool = True


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
    """Seconds spent in handlers."""


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
    flows: tuple[Flow, ...]
    dead_letters: int
    peers: tuple[str, ...]
    """The nodes it is connected to."""
    processes: tuple[ProcessStatistics, ...] = ()
    """What this node launched; only the root launches."""


class WindUpMsg(Request[NodeStatistics]):
    """The run is over: say what was done, and take no alarm at others that stop before you."""

    lane: ClassVar[Lane] = Lane.SYSTEM


class StatisticsMsg(Request[NodeStatistics]):
    """How is this node doing?"""

    lane: ClassVar[Lane] = Lane.SYSTEM
