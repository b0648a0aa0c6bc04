"""Effects of an activation, as in the records `Handled` and `Late`, and the identity of messages and their types."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, NamedTuple, dataclass_transform

GENERATION_SHIFT = 32
"""Bits of a message's number below its generation."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


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
    """True if it expects an answer."""

    @property
    def name(self) -> str:
        """The class name."""
        return self.tag.rpartition(".")[2]


EFFECTS: dict[int, type["Effect"]] = {}
"""The effect classes by code."""


@dataclass_transform(frozen_default=True)
@dataclass(frozen=True)
class Effect:
    """One action of an actor, or one event that it waited for, during an activation.

    Each subclass is a frozen dataclass. Its code and the order of its fields are part of the format.
    """

    code: ClassVar[int]
    """Number of the class in the file."""
    at: float
    """Seconds since the activation began."""

    def __init_subclass__(cls, *, code: int) -> None:
        cls.code = code
        EFFECTS[code] = dataclass(frozen=True)(cls)


class Sent(Effect, code=1):
    """The actor sent a message with `tell` or `tell_nowait`."""

    number: int
    recipient: str
    type: MessageType
    fields: Mapping[str, Any] | None
    nowait: bool


class SendCompleted(Effect, code=2):
    """A `tell` that had to wait for room completed. One that did not wait has no such effect."""

    number: int


class SendFailed(Effect, code=3):
    """`tell` or `tell_nowait` raised."""

    number: int
    error: str
    text: str


class Asked(Effect, code=4):
    """The actor sent a request with `ask`."""

    number: int
    recipient: str
    type: MessageType
    fields: Mapping[str, Any] | None


class AnswerReceived(Effect, code=5):
    """`ask` returned; the `Answer` record of this number holds the value."""

    number: int


class AskRaised(Effect, code=6):
    """`ask` raised."""

    number: int
    error: str
    text: str


class AnswerGiven(Effect, code=7):
    """The actor answered a request."""

    request: MessageId
    correlation: int
    value: Any


class AnswerRefused(Effect, code=8):
    """A request to the actor ended with an error instead of an answer."""

    request: MessageId
    correlation: int
    error: str
    text: str


class Spawned(Effect, code=9):
    """The actor started a child."""

    address: str
    kind: str
    """The child's class: `module:qualname`."""


class TimerSet(Effect, code=10):
    """The actor set a timer that sends it a message. The delivery has this number."""

    number: int
    delay: float
    type: MessageType
    fields: Mapping[str, Any] | None


class TimerCancelled(Effect, code=11):
    """The actor cancelled a timer, which may have fired before."""

    number: int


class MonotonicRead(Effect, code=12):
    """The actor read `self.clock.monotonic()`."""

    value: float


class NowRead(Effect, code=13):
    """The actor read `self.clock.now()`."""

    microseconds: int
    """Since 1970."""

    @property
    def value(self) -> datetime:
        """The time read, in UTC."""
        return EPOCH + timedelta(microseconds=self.microseconds)


class Offloaded(Effect, code=14):
    """Offloaded work ended and the actor continued."""

    index: int
    """Count of the `offload` calls of this activation, from 1."""
    error: str
    """Type of the exception it raised; empty for none."""


class StopRequested(Effect, code=15):
    """The actor, or other code through the node, requested its stop."""

    graceful: bool


class Watched(Effect, code=16):
    """The actor began to watch another one."""

    address: str


class Withdrawn(Effect, code=17):
    """The asker abandoned its request: a waiting handler is cancelled, a later answer is dropped."""

    request: MessageId
    correlation: int


MESSAGE_EFFECTS = (Sent, Asked, TimerSet)
"""Effects that carry a message, whose type and values are the third and fourth field."""
