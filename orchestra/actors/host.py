"""The node of a cell, as the cell sees it."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from orchestra.actors.actor import ActorFactory
from orchestra.actors.asks import LocalActor, PendingAsks
from orchestra.actors.axes import AnyArray
from orchestra.actors.message import Message
from orchestra.actors.recorder import ActorSettings, Recorder, StateSource
from orchestra.actors.supervisor import Child, Children
from orchestra.clock import Clock
from orchestra.errors import ActorFailed

T = TypeVar("T")


class Host(Protocol):
    """A node as its cells see it."""

    clock: Clock
    """The runtime's clock. Actors read the clock of their context, which a recorder may wrap."""
    loop: asyncio.AbstractEventLoop
    thread: int
    """The identifier of the loop's thread."""
    asks: PendingAsks
    """The asks of the node that wait for their answers."""
    stopping: bool
    """True while the run is ending, so that missing peers are expected."""
    main_actor: str
    """The address of the actor whose end is the end of the run, if it runs here."""

    @property
    def cells(self) -> Mapping[str, LocalActor]:
        """The running actors of this node, by address."""

    def recorder_for(self, settings: ActorSettings, state: StateSource) -> Recorder | None:
        """Return a recorder for a new actor, or None if it is not recorded."""

    # Messages

    def message_memory(self, nbytes: int) -> AnyArray | None:
        """Return memory for the arrays of one message, or None; for any thread."""

    def post_remote(
        self, sender: str, recipient: str, message: Message, number: int = 0, clock: int = 0
    ) -> Awaitable[None] | None:
        """Send `message` to another node; return an awaitable that waits for room if there is none."""

    def post_remote_nowait(
        self, sender: str, recipient: str, message: Message, number: int = 0, clock: int = 0
    ) -> None:
        """Send `message` to another node, or raise `MailboxFull`, or `Unreachable` without a connection."""

    def post_threadsafe(self, recipient: str, message: Message) -> Future[None]:
        """Deliver `message` from any thread, as the code around the node does; return a future of its delivery."""

    def dead_letter(self, recipient: str, sender: str, message: Message, reason: str) -> None:
        """Count and log a message that no actor will handle."""

    def watch(self, watcher: str, target: str) -> None:
        """Send `watcher`, an actor of this node, a `TerminatedMsg` when `target` terminates."""

    # Actors

    def start_cell(self, name: str, factory: ActorFactory, siblings: Children) -> Child:
        """Start an actor of this node as one of `siblings`."""

    async def stop_remote(self, parent: str, address: str) -> list[ActorFailed]:
        """Stop a child of `parent` on another node; return the failures on the way."""

    async def offload(self, aborting: Callable[[], bool], function: Callable[..., T], *args: Any) -> T:
        """Run `function` off the event loop; an actor that is `aborting` does not wait for its end."""

    # Ends

    def ended(self, address: str, reason: str, watchers: set[str], counts: Counter[tuple[str, type[Message]]]) -> None:
        """Remove an actor that has ended, keep the counts of its messages by sender and type, notify its watchers."""

    def escalate(self, failed: ActorFailed, parent: str = "") -> None:
        """Fail the actor at `parent` on another node; without one, fail the whole node."""
