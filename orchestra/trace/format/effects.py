"""Effects of an activation, as in the records `Handled` and `Late`, and the identity of messages and their types."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, NamedTuple

GENERATION_SHIFT = 32
"""Bits of a message's number below its generation."""


class MessageId(NamedTuple):
    """Identity of a message."""

    sender: str
    number: int

    @property
    def serial(self) -> int:
        """Count of the sender's messages up to this one, from 1."""
        return self.number & ((1 << GENERATION_SHIFT) - 1)

    @property
    def generation(self) -> int:
        """The generation of the sender's process."""
        return self.number >> GENERATION_SHIFT

    def __str__(self) -> str:
        return f"{self.sender}#{self.serial}" if self.number else f"{self.sender}#?"


@dataclass(frozen=True, slots=True)
class MessageType:
    """A message class as a trace describes it, so that the trace can be read without the code."""

    tag: str
    """Its name on the wire."""
    fingerprint: bytes
    """Digest of its schema; empty where its record is lost."""
    fields: tuple[str, ...]
    """Names of its fields."""
    request: bool
    """Whether it expects an answer."""

    @property
    def name(self) -> str:
        """The class name."""
        return self.tag.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Effect:
    """One action of an actor, or one event that it waited for, during an activation."""

    code: ClassVar[int]
    """Number of the class in the file."""
    at: float
    """Seconds since the activation began."""


@dataclass(frozen=True, slots=True)
class Sent(Effect):
    """The actor sent a message with `tell` or `tell_nowait`."""

    number: int
    recipient: str
    type: MessageType
    fields: Mapping[str, Any] | None
    nowait: bool


@dataclass(frozen=True, slots=True)
class SendCompleted(Effect):
    """A `tell` that had to wait for room completed. One that did not wait has no such effect."""

    number: int


@dataclass(frozen=True, slots=True)
class SendFailed(Effect):
    """`tell` or `tell_nowait` raised."""

    number: int
    error: str
    text: str


@dataclass(frozen=True, slots=True)
class Asked(Effect):
    """The actor sent a request with `ask`."""

    number: int
    recipient: str
    type: MessageType
    fields: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class AnswerReceived(Effect):
    """`ask` returned; the `Answer` record of this number holds the value."""

    number: int


@dataclass(frozen=True, slots=True)
class AskRaised(Effect):
    """`ask` raised."""

    number: int
    error: str
    text: str


@dataclass(frozen=True, slots=True)
class AnswerGiven(Effect):
    """The actor answered a request."""

    request: MessageId
    correlation: int
    value: Any


@dataclass(frozen=True, slots=True)
class AnswerRefused(Effect):
    """A request to the actor ended with an error instead of an answer."""

    request: MessageId
    correlation: int
    error: str
    text: str


@dataclass(frozen=True, slots=True)
class Spawned(Effect):
    """The actor started a child."""

    address: str
    kind: str
    """The child's class: `module:qualname`."""


@dataclass(frozen=True, slots=True)
class TimerSet(Effect):
    """The actor set a timer that sends it a message. The delivery has this number."""

    number: int
    delay: float
    type: MessageType
    fields: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class TimerCancelled(Effect):
    """The actor cancelled a timer, which may have fired before."""

    number: int


@dataclass(frozen=True, slots=True)
class MonotonicRead(Effect):
    """The actor read `self.clock.monotonic()`."""

    value: float


@dataclass(frozen=True, slots=True)
class NowRead(Effect):
    """The actor read `self.clock.now()`."""

    microseconds: int
    """Since 1970."""

    @property
    def value(self) -> datetime:
        """The time read, in UTC."""
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=self.microseconds)


@dataclass(frozen=True, slots=True)
class Offloaded(Effect):
    """Offloaded work ended and the actor continued."""

    index: int
    """Count of the `offload` calls of this activation, from 1."""
    error: str
    """Type of the exception it raised; empty for none."""


@dataclass(frozen=True, slots=True)
class StopRequested(Effect):
    """The actor, or other code through the node, requested its stop."""

    graceful: bool


@dataclass(frozen=True, slots=True)
class Watched(Effect):
    """The actor began to watch another one."""

    address: str


@dataclass(frozen=True, slots=True)
class Withdrawn(Effect):
    """The asker abandoned its request: a waiting handler is cancelled, a later answer is dropped."""

    request: MessageId
    correlation: int


MESSAGE_EFFECTS = (Sent, Asked, TimerSet)
"""Effects that carry a message, whose type and values are the third and fourth field."""
REQUEST_EFFECTS = (AnswerGiven, AnswerRefused, Withdrawn)
"""Effects whose first field is the id of a request."""
EFFECTS: dict[int, type[Effect]] = dict(
    enumerate(
        (
            *(Sent, SendCompleted, SendFailed, Asked, AnswerReceived, AskRaised, AnswerGiven, AnswerRefused, Spawned),
            *(TimerSet, TimerCancelled, MonotonicRead, NowRead, Offloaded, StopRequested, Watched, Withdrawn),
        ),
        1,
    )
)
"""The effect classes by code. A new class goes to the end: the order is part of the format."""
for _code, _kind in EFFECTS.items():
    _kind.code = _code
