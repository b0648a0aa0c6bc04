"""The interfaces around a cell: its node as `Host`, and the recorder of its actor."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from orchestra.actors.actor import Actor
from orchestra.actors.mailbox import Envelope, Queued
from orchestra.actors.message import Message, Request
from orchestra.actors.ref import Ref
from orchestra.actors.supervisor import Child, Children
from orchestra.clock import Clock, TimerHandle
from orchestra.errors import ActorFailed

T = TypeVar("T")

StateSource = Callable[[], tuple[Actor[Any], np.random.Generator] | None]
"""Returns the actor and its random generator, or None while it owes or awaits an answer."""


@dataclass(frozen=True, slots=True)
class ActorSettings:
    """The values an actor is started with. All its incarnations share them."""

    address: str
    kind: type[Actor[Any]]
    factory: Callable[[], Actor[Any]]
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

    @property
    def clock(self) -> Clock:
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

    def sent(
        self, recipient: str, message: Message, local: bool, nowait: bool = False
    ) -> tuple[Message, int, int, float]:
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

    def spawned(self, child: "StartedChild", factory: Callable[[], Actor[Any]]) -> None:
        """Report a new child on this node."""

    def watched(self, address: str) -> None:
        """Report that the actor watches another."""

    def stop_requested(self, *, graceful: bool) -> None:
        """Report that the actor stopped itself."""


class StartedChild(Child, Protocol):
    """A child that `Host.start_cell` has started."""

    @property
    def recorder(self) -> Recorder | None:
        """Its recorder, if it is recorded."""


class Spawner(Protocol):
    """An actor that starts a child on another node: the part of its context that this needs."""

    @property
    def address(self) -> str:
        """Its address."""

    def ask(self, recipient: str, request: Request[Any]) -> Coroutine[Any, Any, Any]:
        """Send a request and return the answer."""

    def watch(self, ref: Ref[Any]) -> None:
        """Watch another actor."""

    def spawn_child(self, name: str, kind: type[Actor[Any]], factory: Callable[[], Actor[Any]]) -> Ref[Any]:
        """Start a child on the spawner's own node."""


class LocalActor(Protocol):
    """Another actor of the same node, as the recipient of a tell."""

    def deliver(self, sender: str, message: Message, number: int = 0, queued: float = 0.0) -> Awaitable[None] | None:
        """Queue `message`; return an awaitable that waits for room if there is none.

        `number` and `queued`, the current time, are those of a recorded sender, as in `mailbox.Queued`.
        """

    def deliver_nowait(self, sender: str, message: Message, number: int = 0, queued: float = 0.0) -> None:
        """Queue `message`, or raise `MailboxFull` or `ActorStopped`."""


class Host(Protocol):
    """A node as its cells see it."""

    @property
    def clock(self) -> Clock:
        """The runtime's clock. Actors read the clock of their context, which a recorder may wrap."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def cells(self) -> Mapping[str, LocalActor]:
        """The running actors of this node, by address."""

    @property
    def stopping(self) -> bool:
        """Whether the run is ending, so that missing peers are expected."""

    @property
    def main_actor(self) -> str:
        """The address of the actor whose end is the end of the run, if it runs here."""

    def recorder_for(self, settings: ActorSettings, state: StateSource) -> Recorder | None:
        """Return a recorder for a new actor, or None if it is not recorded."""

    # Messages

    def post_remote(
        self, sender: str, recipient: str, message: Message, number: int = 0, clock: int = 0
    ) -> Awaitable[None] | None:
        """Send `message` to another node; return an awaitable that waits for room if there is none."""

    def post_remote_nowait(
        self, sender: str, recipient: str, message: Message, number: int = 0, clock: int = 0
    ) -> None:
        """Send `message` to another node, or raise `MailboxFull`, or `Unreachable` without a connection."""

    def ask(
        self,
        asker: str,
        recipient: str,
        request: Request[Any],
        chain: tuple[str, ...],
        asked: set[asyncio.Future[Any]] | None = None,
        task: asyncio.Task[Any] | None = None,
        number: int = 0,
        clock: int = 0,
    ) -> Coroutine[Any, Any, Any]:
        """Deliver `request` and return the answer, as `asks.PendingAsks.ask` does."""

    def answer(self, envelope: Envelope, value: Any) -> None:
        """Answer a request of this node."""

    def refuse(self, envelope: Envelope, error: Exception) -> None:
        """Fail a request of any node."""

    def dead_letter(self, recipient: str, sender: str, message: Message, reason: str) -> None:
        """Count and log a message that no actor will handle."""

    def watch(self, watcher: str, target: str) -> None:
        """Send `watcher`, an actor of this node, a `TerminatedMsg` when `target` terminates."""

    # Actors

    def start_cell(
        self, name: str, kind: type[Actor[Any]], factory: Callable[[], Actor[Any]], siblings: Children
    ) -> StartedChild:
        """Start an actor of this node as one of `siblings`."""

    async def spawn_remote(
        self,
        parent: Spawner,
        node: str,
        name: str,
        kind: type[Actor[Any]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Ref[Any]:
        """Start a child of `parent` on another node and watch it; a cancelled spawn stops it again."""

    async def stop_remote(self, parent: str, address: str) -> list[ActorFailed]:
        """Stop a child of `parent` on another node; return the failures on the way."""

    async def offload(self, aborting: Callable[[], bool], function: Callable[..., T], *args: Any) -> T:
        """Run `function` off the event loop; an actor that is `aborting` does not wait for its end."""

    # Ends

    def ended(self, address: str, reason: str, watchers: set[str], counts: Counter[tuple[str, type[Message]]]) -> None:
        """Remove an actor that has ended, keep the counts of its messages by sender and type, notify its watchers."""

    def escalate(self, failed: ActorFailed, parent: str = "") -> None:
        """Fail the actor at `parent` on another node; without one, fail the whole node."""
