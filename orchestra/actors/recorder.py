"""The recorder of an actor as the runtime sees it, and the settings of the actor."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from orchestra.actors import lazy_numpy as np
from orchestra.actors.actor import Actor, ActorFactory
from orchestra.actors.mailbox import Envelope, Queued
from orchestra.actors.message import Message, Request
from orchestra.clock import Clock, TimerHandle

T = TypeVar("T")

StateSource = Callable[[], "tuple[Actor[Any], np.random.Generator] | None"]
"""Returns the actor and its random generator, or None while it owes or awaits an answer."""


@dataclass(frozen=True, slots=True)
class ActorSettings:
    """The values an actor is started with. All its incarnations share them."""

    address: str
    kind: type[Actor[Any]]
    factory: ActorFactory
    """Makes the actor; called for every incarnation."""
    parent: str = ""
    """The address of its parent on another node, with which it ends; empty if it has none there."""
    seed: int = 0
    """The seed of the run."""
    run_directory: Path | None = None
    resume_from: Path | None = None
    """Saved state for the first incarnation; a restarted actor begins without it."""


class Recorder(Protocol):
    """Observes one actor: the messages it takes, the actions it performs. It never sends or delivers anything."""

    clock: Clock
    """The clock the actor reads. Its readings are recorded; the runtime reads `Host.clock` instead."""

    # Lifecycle, reported by the cell

    def born(self) -> None:
        """Report that an incarnation begins: its constructor and `started` come next."""

    def delivered(self, item: Queued) -> None:
        """Report that a message leaves the mailbox for its handler."""

    def handled(self) -> None:
        """Report that the current activation is complete."""

    def stopping(self) -> None:
        """Report that `stopped` comes next."""

    def failed(self, error: BaseException, *, expected: bool) -> None:
        """Report that the incarnation failed; `expected` failures raise no alarm."""

    def ended(self, reason: str) -> None:
        """Report that the actor is gone for good."""

    # Actions of the actor, reported by its context

    def sent(self, recipient: str, message: Message, local: bool, nowait: bool) -> tuple[Message, int, int, float]:
        """Report a tell before it is sent.

        Returns:
            The message to send (a frozen copy if its sender could change it), its number, its Lamport clock and the
            current time in seconds of the monotonic clock.
        """

    def send_failed(self, number: int, error: BaseException) -> None:
        """Report that the tell with this number raised `error`."""

    def send_completed(self, number: int) -> None:
        """Report that the tell with this number had to wait for room and has found it."""

    def asked(self, recipient: str, request: Request[Any]) -> tuple[int, int]:
        """Report an ask before it is sent; return its number and Lamport clock."""

    def ask_failed(self, number: int, error: BaseException) -> None:
        """Report that the ask with this number raised `error`."""

    def ask_answered(self, number: int, request: Request[Any], value: Any) -> None:
        """Report the answer to the ask with this number."""

    def timer_set(self, delay: float, message: Message) -> tuple[Message, int]:
        """Report a new timer; return its message and number, as in `sent`."""

    def timer_handle(self, handle: TimerHandle, number: int) -> TimerHandle:
        """Return a handle that also reports the cancellation of this timer."""

    async def offloaded(self, work: Awaitable[T]) -> T:
        """Await offloaded work and report its end."""

    def replied(self, envelope: Envelope, value: Any) -> None:
        """Report the answer given to a request."""

    def refused(self, envelope: Envelope, error: BaseException) -> None:
        """Report that a request got an error instead of an answer."""

    def withdrawn(self, envelope: Envelope) -> None:
        """Report that a request was withdrawn while the actor worked on it."""

    def given(self, args: Any, kwargs: Mapping[str, Any]) -> None:
        """Report the arguments of the constructor, as another node sent them."""

    def spawned(self, address: str, factory: ActorFactory, recorder: "Recorder | None") -> None:
        """Report a new child on this node, and the recorder of the child, if it is recorded."""

    def watched(self, address: str) -> None:
        """Report that the actor watches another."""

    def stop_requested(self, *, graceful: bool) -> None:
        """Report that the actor stopped itself."""
