"""Actor: the base class of actors, and `@on`, which marks their handlers."""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, ParamSpec, Protocol, Self, TypeVar

from structlog.typing import FilteringBoundLogger

from orchestra.actors import lazy_numpy as np
from orchestra.actors.axes import AnyArray
from orchestra.actors.contract import Contract, handlers_of
from orchestra.actors.mailbox import CAPACITY
from orchestra.actors.message import Message
from orchestra.actors.ref import Ref
from orchestra.actors.supervision import OneForOne, Restart, Strategy, Supervision
from orchestra.clock import Clock, TimerHandle
from orchestra.errors import HandlerError

M = TypeVar("M", bound=Message)
X = TypeVar("X", bound=Message)
A = TypeVar("A")
R = TypeVar("R")
T = TypeVar("T")
P = ParamSpec("P")


State = Mapping[str, Any]
"""The state of an actor: values by names that the actor chooses."""

ActorFactory = partial["Actor[Any]"]
"""Makes an actor: its class, with the arguments of the constructor."""

ACTORS: dict[str, type["Actor[Any]"]] = {}
"""Every actor class of this process, by `module:qualname`. Other nodes may spawn these. A class defined again under its
name replaces the older one."""


def on(message: type[X]) -> Callable[[Callable[[A, X], R]], Callable[[A, X], R]]:
    """Mark a method as the handler of `message`: a plain `def`, or `async def` if it awaits something.

    The handler of a `Request` returns the answer, or an `asyncio.Future` of it to answer later and handle other
    messages meanwhile.

    Raises:
        HandlerError: `message` is not a message class.
    """
    if not (isinstance(message, type) and issubclass(message, Message)):
        raise HandlerError(f"@on takes a message class, got {message!r}")

    def mark(handler: Callable[[A, X], R]) -> Callable[[A, X], R]:
        handler.__orchestra_on__ = message  # type: ignore[attr-defined]  # a function may carry attributes
        return handler

    return mark


class Context(Protocol):
    """The runtime as an actor sees it. Outside of messages, an actor reaches the world only through this."""

    address: str
    clock: Clock
    log: FilteringBoundLogger
    run_directory: Path | None
    resume_from: Path | None

    @property
    def rng(self) -> "np.random.Generator": ...
    def request_stop(self, *, graceful: bool = True) -> None: ...
    def watch(self, ref: Ref[Any]) -> None: ...
    def after(self, delay: float, message: Message) -> TimerHandle: ...
    async def offload(self, function: Callable[..., T], *args: Any) -> T: ...
    def message_memory(self, nbytes: int) -> AnyArray | None: ...
    def spawn_child(self, name: str, factory: ActorFactory) -> Ref[Any]: ...
    async def spawn_remote(self, node: str, name: str, factory: ActorFactory) -> Ref[Any]: ...


making: ContextVar[Context | None] = ContextVar("making", default=None)
"""The context of the actor under construction, so that `self.me` and `self.rng` work in its constructor."""


class Actor(Generic[M]):
    """Base class of actors. An actor has state, which only its handlers access.

    1. Name the messages it understands: `class Counter(Actor[AddMsg | TotalMsg])`.
    2. Take collaborators through the constructor, refs among them.
    3. Mark one handler per message with `@on(Type)`. A class whose handlers and messages disagree raises
       `HandlerError` when it is defined.

    The runtime calls `started`, then handlers one at a time, then `stopped`. An exception in any of them is a failure,
    and `supervision` decides what follows. To be replayable, an actor uses only messages, `self.clock`, `self.rng`
    and the other methods of this class.
    """

    supervision: ClassVar[Supervision] = Restart()
    """The policy for its failures, unless the `children_strategy` of its parent has one for all children."""
    children_strategy: ClassVar[Strategy] = OneForOne()
    """The strategy that decides which of its children restart when one of them fails."""
    mailbox_capacity: ClassVar[int] = CAPACITY
    """Messages its mailbox holds."""
    recorded: ClassVar[bool] = True
    """True if a recorder of the node records it."""
    handlers: ClassVar[Mapping[type[Message], str]] = {}
    """Names of the handlers, by message type."""

    _contract: ClassVar[Contract]
    _context: Context

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        made = super().__new__(cls)
        context = making.get()
        if context is not None:
            made._context = context
        return made

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.handlers = handlers_of(cls, Actor)
        cls._contract = Contract(cls)
        ACTORS[f"{cls.__module__}:{cls.__qualname__}"] = cls

    async def started(self) -> None:
        """Run once, before the first message. Does nothing by default."""

    async def stopped(self) -> None:
        """Run once, after the last message of a graceful stop. Does nothing by default."""

    def snapshot(self) -> State | None:
        """Return the whole state of this actor, for `restore` of another instance.

        The flight recorder calls it between two messages from time to time and keeps the newest state, so that a
        failure can be replayed from there. It keeps the random generator beside it.

        Returns:
            Values that a message may hold, by name: plain values, arrays, refs. Arrays are copied unless they are
            frozen; a message becomes a dict of its fields. None if there is no state to return now. The default
            always returns None.
        """
        return None

    def restore(self, state: State) -> None:
        """Take over the state that `snapshot` returned. Called after the constructor, instead of `started`."""
        raise NotImplementedError(f"{type(self).__name__} takes snapshots but has no restore method")

    @property
    def me(self) -> Ref[M]:
        """The ref of this actor, for messages to itself or in messages to others."""
        return Ref(self._context.address)

    @property
    def clock(self) -> Clock:
        """The clock of this actor. A recorder records its readings."""
        return self._context.clock

    @property
    def rng(self) -> "np.random.Generator":
        """The random generator of this actor, derived from the run's seed, its address and its number of restarts."""
        return self._context.rng

    @property
    def log(self) -> FilteringBoundLogger:
        """A logger that adds this actor's address to every line."""
        return self._context.log

    @property
    def run_directory(self) -> Path | None:
        """The directory of the run's files, if it has one."""
        return self._context.run_directory

    @property
    def resume_from(self) -> Path | None:
        """The directory with the state to resume from, saved by an earlier process of this run.

        None if there is nothing to resume, and for a restarted actor.
        """
        return self._context.resume_from

    def stop(self) -> None:
        """Stop gracefully: accept no new messages, handle the queued ones, then call `stopped`."""
        self._context.request_stop()

    def watch(self, ref: Ref[Any]) -> None:
        """Request a `TerminatedMsg` when another actor ends, or at once if it has ended. Handle it with `@on`."""
        self._context.watch(ref)

    def after(self, delay: float, message: M) -> TimerHandle:
        """Send itself `message` after `delay` seconds, unless the returned handle is cancelled before."""
        return self._context.after(delay, message)

    async def offload(self, function: Callable[..., T], *args: Any) -> T:
        """Run a long computation in a thread and return its result. This actor handles no messages meanwhile.

        `function` may use `tell_threadsafe` of refs, and nothing else. Its arguments belong to it until it returns.
        `offload_cancelled()` tells it of a cancellation.
        """
        return await self._context.offload(function, *args)

    def message_memory(self, nbytes: int) -> AnyArray | None:
        """Return memory for the arrays of one message, (nbytes,) of uint8 with undefined contents, or None.

        Other processes of this host read a message where it was written. There is no such memory before the node has
        sent one of them a large message, for less than 64 KiB, and while much is in use. `MessageArrays` divides it.
        For any thread.
        """
        return self._context.message_memory(nbytes)

    def spawn(self, name: str, kind: Callable[P, "Actor[X]"], *args: P.args, **kwargs: P.kwargs) -> Ref[X]:
        """Start `kind(*args, **kwargs)` as `<this actor>:<name>` on this node. It stops with this actor."""
        return self._context.spawn_child(name, partial(actor_class(kind), *args, **kwargs))

    async def spawn_on(
        self, node: str, name: str, kind: Callable[P, "Actor[X]"], *args: P.args, **kwargs: P.kwargs
    ) -> Ref[X]:
        """Start `kind(*args, **kwargs)` on the node of that name; it stops with this actor, and with its node.

        Its own node supervises it, by the policy of its class. If that escalates, or its node is lost, this actor
        fails, as with a child on its own node. An actor that handles `TerminatedMsg` gets one for a lost node instead.

        Raises:
            SpawnRefused: the other node has not defined that class, an argument cannot travel or does not fit, or
                the name is taken.
            Unreachable: there is no such node, or it is gone.
        """
        return await self._context.spawn_remote(node, name, partial(actor_class(kind), *args, **kwargs))

    def __repr__(self) -> str:
        context = getattr(self, "_context", None)
        return f"<{type(self).__name__} {context.address if context else 'not running'}>"


def actor_class(kind: Any) -> type[Actor[Any]]:
    """Return `kind` if it is an actor class.

    Raises:
        HandlerError: it is something else.
    """
    if isinstance(kind, type) and issubclass(kind, Actor):
        return kind
    raise HandlerError(f"spawn takes an actor class and then what its constructor takes, got {kind!r}")
