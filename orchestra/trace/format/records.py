"""The records of a trace.

A trace is written by one node process. For each incarnation of each actor it holds a `Birth`; then, for every
*activation* (`started`, a message, `stopped`), its inputs (`Delivery`, `Answer`) and, when the activation has ended, a
`Handled` with its effects in order; finally an `End`.

Activations are counted in each incarnation: 0 is the constructor and `started`, 1, 2, … are messages (including the
runtime's own), and the one after the last message is `stopped`.

A message is identified by its sender and a number. The sender counts its messages over all its incarnations in one
process. The upper half of the number is the generation of the process, so that a restarted process repeats no number.
Timers share the count. Number 0 means uncounted: sent from outside of actors, or by an actor that is not recorded.

`clock` is a Lamport clock, one for each node process: it grows with every record, and is never behind the clock that a
message carries. A cause therefore has a smaller clock than its effect. Times are seconds of the node's own monotonic
clock and can be compared within one process only.

Arrays of 2 KiB and more are identified by their digest (XXH3-128 of their bytes in C order). A `full` trace also holds
the bytes of every *input* array, each content once per file. An array that an actor sent is recorded by digest alone;
its bytes are those of the input with the same digest.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum
from typing import Any, Literal, NamedTuple, dataclass_transform

from orchestra.actors import lazy_numpy as np
from orchestra.trace.format.effects import EPOCH, Effect, MessageId, MessageType

Mode = Literal["off", "flight", "digest", "full"]
Phase = Literal["start", "message", "stop"]
PHASES: tuple[Phase, ...] = ("start", "message", "stop")


TABLE = ".table"
"""Suffix of the file that tells the processes of a host which arrays are written (`shared_arrays`); it is no trace."""


class Kind(IntEnum):
    """The kind of a record, as its prefix states it."""

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
    DEDUP = 13
    PACKED = 14
    COMPOSED = 15
    REFERENCE = 16


INPUTS = frozenset({Kind.BIRTH, Kind.DELIVERY, Kind.ANSWER, Kind.SNAPSHOT})
"""The records whose arrays are inputs of an actor: a `full` or `flight` trace holds their bytes."""


@dataclass(frozen=True, slots=True)
class Digest:
    """An array recorded without its bytes."""

    dtype: "np.dtype[Any]"
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
    """File and line of the innermost frame in the actor's own code, or of the innermost frame at all."""
    line: int
    traceback: str

    def __str__(self) -> str:
        return f"{self.type}: {self.text}"


@dataclass(frozen=True, slots=True)
class Experiment:
    """The experiment that a run was started from."""

    file: str
    sha256: str
    flags: tuple[str, ...]
    """As on a command line."""
    hosts: tuple[tuple[Any, ...], ...] = ()
    """The hosts of the run as the process knew them: the fields of each `HostShape`, in order."""
    code: str = ""
    """The digest of the `code.zip` that the run kept; empty if it kept none."""


@dataclass(frozen=True, slots=True)
class Header:
    """The first record of a file. The file stores the fields as a list, in this order."""

    node: str
    generation: int
    """Distinguishes successive processes of this node: the start time of this one, in seconds since 1970."""
    mode: Mode
    segment: int = 0
    """Index of this file among the files of the process."""
    wall: float = 0.0
    """Seconds since 1970 at which the file was opened."""
    monotonic: float = 0.0
    """The node's monotonic clock at that moment."""
    seed: int = 0
    deterministic: bool = False
    """True if offloaded work ran on the loop."""
    pid: int = 0
    host: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    experiment: Experiment | None = None
    reason: str = "recorded"
    """The reason for the file: `recorded`, or the event that made a flight recorder write it."""
    run_directory: str = ""
    """The run directory, as its actors saw it; empty where the run has none."""
    resume_from: str = ""
    """The run state that the run was resumed from; empty for a new run."""

    def at(self, monotonic: float) -> datetime:
        """Return the wall-clock time, in UTC, of a monotonic time of this process."""
        return EPOCH + timedelta(seconds=self.wall + monotonic - self.monotonic)


RECORDS: dict[Kind, type["Record"]] = {}
"""The record classes by kind. Headers, types and arrays have none."""


@dataclass_transform(frozen_default=True)
@dataclass(frozen=True)
class Record:
    """A record of a file. Each subclass is a frozen dataclass; the order of its fields is part of the format."""

    def __init_subclass__(cls, *, kind: Kind | None = None) -> None:
        dataclass(frozen=True)(cls)
        if kind is not None:
            RECORDS[kind] = cls


class IncarnationRecord(Record):
    """The begin or the end of an incarnation."""

    actor: str
    incarnation: int
    """0 for the first, one more after each restart by supervision."""
    clock: int
    time: float


class ActivationRecord(Record):
    """A record of an activation; the first fields of most kinds."""

    actor: str
    incarnation: int
    n: int
    """The activation."""
    clock: int
    time: float


class Birth(IncarnationRecord, kind=Kind.BIRTH):
    """The begin of an actor's incarnation."""

    kind: str
    """Its class: `module:qualname`."""
    source: str
    """SHA-256 of the source of the class, in hexadecimal; empty where the source is not available."""
    origin: Literal["planned", "child", "outside"]
    """Planned by the experiment, spawned by an actor, or spawned by other code through the node."""
    sent: int
    """The number of the last message that earlier incarnations had sent."""
    parent: str = ""
    parent_incarnation: int = 0
    parent_n: int = 0
    """For a child: the activation of the parent that spawned it."""
    args: tuple[Any, ...] | None = None
    """For a child: its constructor's positional arguments; None where they cannot be encoded."""
    kwargs: Mapping[str, Any] | None = None


class ActorSnapshot(ActivationRecord, kind=Kind.SNAPSHOT):
    """The state of an actor before activation `n`; a replay can begin there."""

    random: str
    """The state of its random number generator, as JSON."""
    state: Mapping[str, Any]
    """The result of `Actor.snapshot`, encoded."""


class Delivery(ActivationRecord, kind=Kind.DELIVERY):
    """A message was handed to its handler."""

    waited: float
    """Seconds in the mailbox."""
    id: MessageId
    """Sender and number. The cause of the delivery is the activation in which the sender sent the message."""
    type: MessageType
    correlation: int
    """Not 0 where the sender awaits an answer."""
    nbytes: int
    timer: bool
    """True if a timer of the actor sent it."""
    fields: Mapping[str, Any] | None
    """By name; None where the type is excluded. A large array is an array or a `Digest`."""


class Answer(ActivationRecord, kind=Kind.ANSWER):
    """The answer to a request of the actor arrived."""

    number: int
    """The number of the request, as in `Asked`."""
    type: MessageType
    """The request's."""
    value: Any
    """Encoded: a message is a dict of its fields. Also None where the request's type is excluded."""


class Handled(Record, kind=Kind.HANDLED):
    """The end of an activation."""

    actor: str
    incarnation: int
    n: int
    phase: Phase
    clock: int
    time: float
    """The time at which it began."""
    seconds: float
    """Duration, including waiting."""
    effects: tuple[Effect, ...]
    failure: Failure | None = None


class Late(ActivationRecord, kind=Kind.LATE):
    """Effects between activations (an answer given by a future), or the first part of very many effects within one.

    `n` is the activation that began last.
    """

    effects: tuple[Effect, ...]


class End(IncarnationRecord, kind=Kind.END):
    """The end of an incarnation."""

    reason: str
    """`stopped`, `aborted`, or the text of the exception that ended it."""
    final: bool
    """True if no further incarnation follows."""


class Gap(Record, kind=Kind.GAP):
    """Records that were not written."""

    reason: str
    count: int
    nbytes: int
    first_clock: int
    last_clock: int
    actors: Mapping[str, int] = field(default_factory=dict)
    """Number of lost records by actor."""


class Close(Record, kind=Kind.CLOSE):
    """The last record of a complete file."""

    clock: int
    time: float
    records: int
    dropped: int


class Damage(NamedTuple):
    """Unreadable bytes of a file."""

    offset: int
    length: int
    what: str

    def __str__(self) -> str:
        return f"{self.what}, at byte {self.offset:,} ({self.length:,} bytes)"


@dataclass(slots=True)
class Activation:
    """One activation, assembled from its records: the inputs of an actor and its effects."""

    n: int
    phase: Phase
    delivery: Delivery | None = None
    """None for `start` and `stop`, and where the record is lost."""
    handled: Handled | None = None
    """None where the actor or the trace ended before the activation did."""
    answers: dict[int, Answer] = field(default_factory=dict)
    """By number of the request."""
    early: list[Effect] = field(default_factory=list)
    """Effects from `Late` records before the end."""
    late: list[Effect] = field(default_factory=list)
    """Effects from `Late` records after the end."""

    @property
    def effects(self) -> tuple[Effect, ...]:
        """All effects in order."""
        return (*self.early, *(self.handled.effects if self.handled is not None else ()), *self.late)


@dataclass(slots=True)
class Incarnation:
    """One incarnation of an actor in one process, assembled from its records."""

    header: Header
    birth: Birth
    end: End | None = None

    @property
    def resume_from(self) -> str:
        """The run state that it resumed from; empty if there is none, and after a restart, which resumes nothing."""
        return "" if self.birth.incarnation else self.header.resume_from

    @property
    def key(self) -> tuple[str, int, int]:
        """Address, generation of the process, incarnation number; unique in a run."""
        return (self.birth.actor, self.header.generation, self.birth.incarnation)
