"""Statistics: what actors have handled and wait for, and the messages that report it."""

import inspect
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from orchestra.actors.addresses import OBSERVER, is_observer
from orchestra.actors.message import Message, Request
from orchestra.actors.system_messages import SystemMsg

F = TypeVar("F", bound=tuple[object, ...])
T = TypeVar("T")

MAX_FLOWS = 1000
"""Pairs of sender and type that one actor counts separately."""
MAX_SENDER = 256
"""Characters of a sender's address that is counted separately."""
STORY = 8
"""Streaks of equal deliveries in the story of a failure."""
OTHERS = "others"
"""Stands for all senders or recipients that are not counted separately."""


class MessageCounts(Generic[F]):
    """Numbers of messages by flow: a sender, a type and, for a node, a recipient. Its size is bounded.

    Args:
        most: flows counted separately; all further ones are counted together, by type.
    """

    __slots__ = ("_counts", "_most")

    def __init__(self, most: int) -> None:
        self._counts: Counter[F] = Counter()
        self._most = most

    def add(self, flow: F, count: int, otherwise: F) -> int:
        """Count messages of `flow`, or of `otherwise` if `flow` is one too many; return the new count."""
        counts = self._counts
        if flow not in counts and (len(counts) >= self._most or len(str(flow[0])) > MAX_SENDER):
            flow = otherwise
        counts[flow] += count
        return counts[flow]

    def counted(self) -> Counter[F]:
        """Return the number of messages of each flow."""
        return self._counts.copy()


def others_like(sender: str) -> str:
    """Return the name under which `sender` is counted with others. Observers, outside the run, have their own."""
    return OBSERVER + OTHERS if is_observer(sender) else OTHERS


class Deliveries:
    """Messages one actor has taken, in streaks of equal sender and type.

    The cell calls `turn` when sender or type change and then increments `count`, so a message like the one before
    costs one addition.
    """

    __slots__ = ("_begun", "_counts", "_recent", "count", "kind", "sender")

    def __init__(self) -> None:
        self.count = 0
        """Messages delivered."""
        self.kind: type[Message] | None = None
        """Type of the last one."""
        self.sender = ""
        """Sender of the last one."""
        self._begun = 0
        self._counts: MessageCounts[tuple[str, type[Message]]] = MessageCounts(MAX_FLOWS)
        self._recent: deque[tuple[str, type[Message], int]] = deque(maxlen=STORY)

    def turn(self, kind: type[Message], sender: str) -> None:
        """Begin a streak. Its first message is counted afterwards."""
        count = self.count - self._begun
        if self.kind is not None and count:
            self._counts.add((self.sender, self.kind), count, (others_like(self.sender), self.kind))
            self._recent.append((self.sender, self.kind, count))
        self._begun = self.count
        self.kind = kind
        self.sender = sender

    def message_counts(self) -> Counter[tuple[str, type[Message]]]:
        """Return the number of messages by sender and type."""
        counts = self._counts.counted()
        if self.kind is not None and self.count > self._begun:
            counts[self.sender, self.kind] += self.count - self._begun
        return counts

    def story(self) -> str:
        """Return the last deliveries as text."""
        streaks = list(self._recent)
        if self.kind is not None and self.count > self._begun:
            streaks.append((self.sender, self.kind, self.count - self._begun))
        if not streaks:
            return "it had handled nothing yet"
        told = (f"{kind.__name__} from {sender}{f', {n} times' if n > 1 else ''}" for sender, kind, n in streaks)
        return f"last deliveries, newest last: {'; '.join(list(told)[-STORY:])}"


@dataclass(eq=False, slots=True)
class Wait:
    """A condition that a handler waits for. Its text is made on demand."""

    what: str
    """The condition, in words."""
    whose: object
    """The address that it concerns, or a function and its arguments."""
    thread: int = 0
    """The thread that does offloaded work, while it does."""

    def __str__(self) -> str:
        return f"{self.what} {self.whose if isinstance(self.whose, str) else _name(self.whose)}"

    def work(self, function: Callable[..., T], *args: Any) -> T:
        """Call `function` in the current thread, and note which thread that is."""
        self.thread = threading.get_ident()
        try:
            return function(*args)
        finally:
            self.thread = 0


def _name(work: Any) -> str:
    function, args = work
    # `with_threads(4, policy.learn, batch)` is named after the innermost function.
    called = [entry for entry in args if callable(entry) and hasattr(entry, "__qualname__")]
    function = called[0] if called else function
    if inspect.ismethod(function) and not isinstance(function.__self__, type):
        return f"{type(function.__self__).__qualname__}.{function.__name__}"  # also for an inherited method
    inner = getattr(function, "func", function)  # a partial is named after the function it wraps
    return str(getattr(inner, "__qualname__", None) or type(inner).__qualname__)


class MailboxStatistics(Message):
    """Fill of a mailbox."""

    depth: int
    """Messages queued."""
    nbytes: int
    capacity: int
    waiting: int
    """Senders of this node that wait for room."""


class CellStatistics(Message):
    """One actor of a node."""

    address: str
    kind: str
    """Name of its class."""
    mailbox: MailboxStatistics
    handled: int
    restarts: int
    busy_s: float
    """Seconds spent on messages, including waits in the middle of one."""
    state: Literal["idle", "handling", "waiting", "restarting", "stopping"]
    """`waiting` means in the middle of a message; `idle` means without one."""
    message: str
    """Type of the message being handled; empty if none."""
    sender: str
    """Its sender."""
    for_s: float
    """Seconds since its handling began; for a plain `def`, since the actor was last idle, or slightly later."""
    waits_for: tuple[str, ...]
    """Conditions the handler waits for, in words: `asks host-0/proxy`, `in a thread: Qmix.learn`."""
    withdrawn: int = 0
    """Requests withdrawn by their askers, before or during handling."""


class LinkStatistics(Message):
    """One side of a connection to a peer. Counts are of messages and answers since the session began."""

    peer: str
    state: Literal["open", "broken"]
    """`open` if there is a connection now. A session outlives a broken connection for a while."""
    unacknowledged: int
    """Frames kept because the peer may lack them."""
    round_trip_s: float | None
    """Seconds from the last heartbeat to its answer; None before the first."""
    sent: int
    sent_bytes: int
    received: int
    received_bytes: int
    in_flight: int
    """Messages sent that have not left the mailboxes of the peer: credit in use."""
    in_flight_bytes: int
    credit_used: float
    """Share of the credit in use at the recipient with the least left; at 1.0 no message passes."""
    waiting: int
    """Senders of this node that wait for credit."""
    memory: str = ""
    """Shared memory for large arrays: empty before the first one, `offered`, `shared`, or why there is none."""
    memory_sent_bytes: int = 0
    """The part of `sent_bytes` that went through shared memory."""
    memory_copied_bytes: int = 0
    """Of these, bytes that were copied into shared memory for it; the others were there already."""
    memory_held_bytes: int = 0
    """Bytes of this side's arena that the peer has not released."""


class Flow(Message):
    """Number of messages of one type from one address to another, counted where they are handled."""

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
    """True if it died too often and is not restarted."""


HostState = Literal["asked", "queued", "starting", "joined", "playing", "silent", "leaving", "left", "gone"]


class HostStatistics(Message):
    """A host of the run, as the head knows it."""

    slot: int
    name: str
    state: HostState
    """`silent` while its agent answers no heartbeats; the session outlives that for a while."""
    where: str = ""
    """The engine's description of the host."""
    reason: str = ""
    """The newest reason: from the engine, or for the end of the agent."""
    since_s: float = 0.0
    """Seconds since the state changed."""
    cores: int = 0
    """0 if unknown."""
    gpus: int = 0
    memory: int = 0
    plays: bool = True
    nodes: tuple[str, ...] = ()
    """Nodes that the run has placed there."""
    running: int = 0
    """Processes of these nodes that run."""
    agent: str = ""
    """The node of its agent; empty at the head, and while there is none."""
    clock_offset_s: float | None = None
    """Seconds by which its clock was ahead of the head's when its agent joined."""
    silent_s: float = 0.0
    """Seconds since the last sign of life of its agent, if the state is `silent`."""
    tunnel: bool = False
    """True if its agent reaches the head through ssh."""
    cores_used: float | None = None
    """Processors that its processes use; None before they were measured."""
    env_steps: int = 0
    """Environment steps played there that have reached the learner."""
    env_steps_per_s: float = 0.0
    """Such environment steps per second, over the last seconds."""
    policy_lag: int | None = None
    """Age of its parameters: versions by which they are behind the learner's in its newest experience, at most. None
    before it has played."""


class NodeStatistics(Message):
    """One process."""

    node: str
    cells: tuple[CellStatistics, ...]
    message_counts: tuple[Flow, ...]
    dead_letters: int
    peers: tuple[str, ...]
    """Nodes it is connected to."""
    links: tuple[LinkStatistics, ...]
    pid: int
    at_s: float
    """Time of this report in seconds, on a monotonic clock of the process: for rates."""
    cpu_s: float
    """Seconds of processor time used by the process."""
    rss: int
    """Bytes of memory occupied by the process."""
    lag_s: float
    """Largest delay of the event loop at the last few heartbeats, in seconds; 0 without heartbeats."""
    tasks: int
    """Unfinished tasks of its event loop."""
    processes: tuple[ProcessStatistics, ...] = ()
    """Processes launched by this node; only the root launches."""
    unencrypted: bool = False
    """True if messages travel in plain TCP beyond its host."""
    hosts: tuple[HostStatistics, ...] = ()
    """The hosts of the run, by slot; only the root of a run over several hosts knows them."""


class FinalStatisticsMsg(SystemMsg, Request[NodeStatistics]):
    """The run is over: return the final statistics, and expect peers to disappear."""


class StatisticsMsg(SystemMsg, Request[NodeStatistics]):
    """Return the statistics of a node."""
