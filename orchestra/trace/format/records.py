"""The record model: what a trace says about a run, as values.

A trace is written by one node process. For each incarnation of each actor it holds a `Birth`; then, for every
*activation* (`started`, a message, `stopped`), what came in (`Delivery`, `Answer`) and, when the activation is over,
what came of it (`Handled` with its effects, in order); at last an `End`.

Activations are counted in each incarnation: 0 is the constructor and `started`, 1, 2, … are messages (the runtime's own
included), and the one after the last message is `stopped`.

A message is named by its sender and a number that the sender counts, over all its incarnations in one process. The
process's generation stands in the number's upper half, so that a process started anew repeats no name. Timers draw from
the same count. Number 0 stands for "nobody counted": told from outside of actors, or by an actor that is not recorded.

`clock` is a Lamport clock, one for each node process: it grows with everything recorded there and is never behind what
a message brings, so whatever could have caused something has a smaller clock. Times are seconds of the node's own
monotonic clock; they compare within a process only.

Arrays of 2 KiB and more are kept by their digest (XXH3-128 of their bytes in C order). A trace made by `full` has
the bytes of every array that came *in* beside that, once each; what an actor sent is told by digest alone, and is found
by it where it came in. So two messages are equal byte for byte if their fields and digests are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Any, Literal

import numpy as np

from orchestra.trace.format.effects import Effect, MessageId, MessageType

Mode = Literal["off", "flight", "digest", "full"]
Phase = Literal["start", "message", "stop"]
PHASES: tuple[Phase, ...] = ("start", "message", "stop")


class Kind(IntEnum):
    """What a record of the file is."""

    HEADER = 1
    TYPE = 2
    BLOB = 3
    BIRTH = 4
    DELIVERY = 5
    ANSWER = 6
    HANDLED = 7
    LATE = 8
    END = 9
    GAP = 10
    CLOSE = 11
    SNAPSHOT = 12
    MOSAIC = 13


INPUTS = frozenset({Kind.BIRTH, Kind.DELIVERY, Kind.ANSWER, Kind.SNAPSHOT})
"""The records whose arrays `full` keeps by value."""


@dataclass(frozen=True, slots=True)
class Digest:
    """An array whose bytes are not here."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    digest: bytes
    """XXH3-128 of its bytes in C order."""

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}] {self.digest.hex()[:8]}"


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception that ended an activation."""

    type: str
    text: str
    file: str
    """Of the innermost line of the actor's own code, or of the innermost line at all."""
    line: int
    traceback: str


@dataclass(frozen=True, slots=True)
class Experiment:
    """What a run was started from."""

    file: str
    sha256: str
    flags: tuple[str, ...]
    """As on a command line."""


@dataclass(frozen=True, slots=True)
class Header:
    """The first record of a file."""

    node: str
    generation: int
    """Tells apart the processes that were this node, one after the other: the second of its start, since 1970."""
    segment: int
    """Which of the files of this process it is, from 0."""
    mode: Mode
    wall: float
    """Seconds since 1970 when the file was opened …"""
    monotonic: float
    """… and the node's monotonic clock at that moment."""
    seed: int
    deterministic: bool
    """Whether offloaded work ran on the loop."""
    pid: int
    host: str
    versions: Mapping[str, str]
    experiment: Experiment | None
    reason: str
    """Why it was written: `recorded`, or what made a flight recorder write."""
    run_directory: str = ""
    """How the actors were told where the run keeps its files; empty if it keeps none."""
    resume_from: str = ""
    """Where that lies which its actors went on from; empty for a run that began anew."""

    def at(self, monotonic: float) -> datetime:
        """The wall clock's time, in UTC, of a moment of this process."""
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=self.wall + monotonic - self.monotonic)


@dataclass(frozen=True, slots=True)
class Birth:
    """An incarnation of an actor begins."""

    actor: str
    incarnation: int
    """0 for the first, and one more for each restart by supervision."""
    clock: int
    time: float
    kind: str
    """Its class: `module:qualname`."""
    source: str
    """SHA-256 of the source of the class, in hexadecimal; empty where there is none to be had."""
    origin: Literal["planned", "child", "outside"]
    """Planned by the experiment, spawned by an actor, or spawned by the code around the node."""
    sent: int
    """The number of the last message that earlier incarnations had sent."""
    parent: str = ""
    parent_incarnation: int = 0
    parent_n: int = 0
    """For a child: the activation that spawned it."""
    args: tuple[Any, ...] | None = None
    """For a child: what its constructor was given, where that can be written down."""
    kwargs: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ActorSnapshot:
    """What an actor held before one of its activations: a replay can begin there."""

    actor: str
    incarnation: int
    n: int
    """The activation that came next."""
    clock: int
    time: float
    random: str
    """The state of its random numbers, as JSON."""
    state: Mapping[str, Any]
    """What `Actor.snapshot` returned, as it travels."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message reached its handler."""

    actor: str
    incarnation: int
    n: int
    """Which activation it is."""
    clock: int
    time: float
    waited: float
    """Seconds in the mailbox."""
    id: MessageId
    """Its sender and number: its cause is whatever that sender was doing when it sent this."""
    type: MessageType
    correlation: int
    """Not 0 where an answer is awaited."""
    nbytes: int
    timer: bool
    """Whether it is a timer of the actor's own."""
    fields: Mapping[str, Any] | None
    """By name; None where the type is excluded. Large arrays are arrays or `Digest`s."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What an actor asked for has come."""

    actor: str
    incarnation: int
    n: int
    clock: int
    time: float
    number: int
    """Of the request, as in `Asked`."""
    type: MessageType
    """The request's."""
    value: Any
    """As it travels: a message is a dict of its fields. None as well where the type is excluded."""


@dataclass(frozen=True, slots=True)
class Handled:
    """An activation is over."""

    actor: str
    incarnation: int
    n: int
    phase: Phase
    clock: int
    time: float
    """When it began."""
    seconds: float
    """How long it took, waiting included."""
    effects: tuple[Effect, ...]
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Late:
    """Effects that came between activations (an answer given by a future), or the first of very many within one.

    `n` is the activation begun last.
    """

    actor: str
    incarnation: int
    n: int
    clock: int
    time: float
    effects: tuple[Effect, ...]


@dataclass(frozen=True, slots=True)
class End:
    """An incarnation is over."""

    actor: str
    incarnation: int
    clock: int
    time: float
    reason: str
    """`stopped`, `aborted`, or the exception that ended it."""
    final: bool
    """Whether no other incarnation follows."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Records that were not written."""

    reason: str
    count: int
    nbytes: int
    first_clock: int
    last_clock: int
    actors: Mapping[str, int] = field(default_factory=dict)
    """How many of each actor's."""


@dataclass(frozen=True, slots=True)
class Close:
    """The last record of a file that was closed properly."""

    clock: int
    time: float
    records: int
    dropped: int


Record = Birth | ActorSnapshot | Delivery | Answer | Handled | Late | End | Gap | Close


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a file that are no record."""

    offset: int
    length: int
    what: str

    def __str__(self) -> str:
        return f"{self.what}, at byte {self.offset:,} ({self.length:,} bytes)"


@dataclass(slots=True)
class Activation:
    """One activation, put together: what a replay feeds an actor, and what it expects of it."""

    n: int
    phase: Phase
    delivery: Delivery | None = None
    """None for `start` and `stop`, and where its record is lost."""
    handled: Handled | None = None
    """None where the actor, or the record, ended before."""
    answers: dict[int, Answer] = field(default_factory=dict)
    """By the number of the request."""
    early: list[Effect] = field(default_factory=list)
    """Of many effects, those that were told before it was over."""
    late: list[Effect] = field(default_factory=list)

    @property
    def effects(self) -> tuple[Effect, ...]:
        """All it did, in order."""
        return (*self.early, *(self.handled.effects if self.handled is not None else ()), *self.late)


@dataclass(slots=True)
class Incarnation:
    """One incarnation of an actor in one process, put together."""

    header: Header
    birth: Birth
    end: End | None = None

    @property
    def key(self) -> tuple[str, int, int]:
        """Address, generation of the process, incarnation: no two lives share it."""
        return (self.birth.actor, self.header.generation, self.birth.incarnation)
