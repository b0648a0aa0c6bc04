"""What an actor did during an activation, or what came to it then: the effects in the records `Handled` and `Late`."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, NamedTuple

GENERATION_SHIFT = 32
"""Bits of a message's number below its generation."""


class MessageId(NamedTuple):
    """The name of a message."""

    sender: str
    number: int

    @property
    def serial(self) -> int:
        """Which of its sender's messages it is, from 1."""
        return self.number & ((1 << GENERATION_SHIFT) - 1)

    @property
    def generation(self) -> int:
        """The generation of the sender's process."""
        return self.number >> GENERATION_SHIFT

    def __str__(self) -> str:
        return f"{self.sender}#{self.serial}" if self.number else f"{self.sender}#?"


@dataclass(frozen=True, slots=True)
class MessageType:
    """What a trace knows of a message class, so that it can be read without the code."""

    tag: str
    """Its name on the wire: module and qualified name."""
    fingerprint: bytes
    """A digest of its schema."""
    fields: tuple[str, ...]
    request: bool
    """Whether it is answered."""

    @property
    def name(self) -> str:
        """The class's own name."""
        return self.tag.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Effect:
    """Something an actor did, or that came to it, during an activation."""

    code: ClassVar[int]
    at: float
    """Seconds since the activation began."""


@dataclass(frozen=True, slots=True)
class Sent(Effect):
    """It told somebody something."""

    code: ClassVar[int] = 1
    number: int
    recipient: str
    type: MessageType
    fields: Mapping[str, Any] | None
    nowait: bool


@dataclass(frozen=True, slots=True)
class SendCompleted(Effect):
    """A `tell` that had to wait for room went on. One that did not wait has no such effect."""

    code: ClassVar[int] = 2
    number: int


@dataclass(frozen=True, slots=True)
class SendFailed(Effect):
    """`tell` or `tell_nowait` raised."""

    code: ClassVar[int] = 3
    number: int
    error: str
    text: str


@dataclass(frozen=True, slots=True)
class Asked(Effect):
    """It asked somebody."""

    code: ClassVar[int] = 4
    number: int
    recipient: str
    type: MessageType
    fields: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class AnswerReceived(Effect):
    """An answer came, and the actor went on; the `Answer` record of this number has it."""

    code: ClassVar[int] = 5
    number: int


@dataclass(frozen=True, slots=True)
class AskRaised(Effect):
    """`ask` raised."""

    code: ClassVar[int] = 6
    number: int
    error: str
    text: str


@dataclass(frozen=True, slots=True)
class AnswerGiven(Effect):
    """It answered a request."""

    code: ClassVar[int] = 7
    request: MessageId
    correlation: int
    value: Any


@dataclass(frozen=True, slots=True)
class AnswerRefused(Effect):
    """A request of somebody's has no answer."""

    code: ClassVar[int] = 8
    request: MessageId
    correlation: int
    error: str
    text: str


@dataclass(frozen=True, slots=True)
class Spawned(Effect):
    """It started a child."""

    code: ClassVar[int] = 9
    address: str
    kind: str


@dataclass(frozen=True, slots=True)
class TimerSet(Effect):
    """It will be told something by itself. The delivery has this number."""

    code: ClassVar[int] = 10
    number: int
    delay: float
    type: MessageType
    fields: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class TimerCancelled(Effect):
    """It took a timer back; perhaps one that had gone off."""

    code: ClassVar[int] = 11
    number: int


@dataclass(frozen=True, slots=True)
class MonotonicRead(Effect):
    """It read `self.clock.monotonic()`."""

    code: ClassVar[int] = 12
    value: float


@dataclass(frozen=True, slots=True)
class NowRead(Effect):
    """It read `self.clock.now()`."""

    code: ClassVar[int] = 13
    microseconds: int
    """Since 1970."""

    @property
    def value(self) -> datetime:
        """What it read."""
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=self.microseconds)


@dataclass(frozen=True, slots=True)
class Offloaded(Effect):
    """Offloaded work was done, and the actor went on."""

    code: ClassVar[int] = 14
    index: int
    """Which call of `offload` in this activation it was, from 1."""
    error: str
    """The type of what it raised; empty if nothing."""


@dataclass(frozen=True, slots=True)
class StopRequested(Effect):
    """It, or somebody through the node, asked it to stop."""

    code: ClassVar[int] = 15
    graceful: bool


@dataclass(frozen=True, slots=True)
class Watched(Effect):
    """It asked to hear of the end of another."""

    code: ClassVar[int] = 16
    address: str


@dataclass(frozen=True, slots=True)
class Withdrawn(Effect):
    """Whoever asked gave up: a handler is cancelled where it waits, an answer for later is dropped."""

    code: ClassVar[int] = 17
    request: MessageId
    correlation: int


EFFECTS: dict[int, type[Effect]] = {
    kind.code: kind
    for kind in (
        *(
            Sent,
            SendCompleted,
            SendFailed,
            Asked,
            AnswerReceived,
            AskRaised,
            AnswerGiven,
            AnswerRefused,
            Spawned,
            TimerSet,
        ),
        *(TimerCancelled, MonotonicRead, NowRead, Offloaded, StopRequested, Watched),
        Withdrawn,
    )
}
