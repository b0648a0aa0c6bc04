"""Actor: state, and the handlers that alone touch it. No I/O in this file."""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, ParamSpec, Protocol, Self, TypeVar

import numpy as np
from structlog.typing import FilteringBoundLogger

from orchestra.actors.contract import handlers_of
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
"""What an actor holds, by names of its own."""

ACTORS: dict[str, type["Actor[Any]"]] = {}
"""Every actor class of this process, as `module:qualname`: what another node may ask for. One defined again under its
name replaces the older one."""


def on(message: type[X]) -> Callable[[Callable[[A, X], R]], Callable[[A, X], R]]:
    """Mark a method as the handler of `message`. A plain `def` where nothing blocks, `async def` where something does.

    The handler of a `Request` returns its answer; or an `asyncio.Future` of it, to answer later without holding up
    its mailbox.
    """
    if not (isinstance(message, type) and issubclass(message, Message)):
        raise HandlerError(f"@on takes a message class, got {message!r}")

    def mark(handler: Callable[[A, X], R]) -> Callable[[A, X], R]:
        handler.__orchestra_on__ = message  # type: ignore[attr-defined]  # a function may carry attributes
        return handler

    return mark


class Context(Protocol):
    """What the runtime gives an actor: its only ways into the world besides messages."""

    address: str
    clock: Clock
    log: FilteringBoundLogger
    run_directory: Path | None
    resume_from: Path | None

    @property
    def rng(self) -> np.random.Generator: ...
    def request_stop(self, *, graceful: bool = True) -> None: ...
    def watch(self, ref: Ref[Any]) -> None: ...
    def after(self, delay: float, message: Message) -> TimerHandle: ...
    async def offload(self, function: Callable[..., T], *args: Any) -> T: ...
    def spawn_child(self, name: str, kind: type["Actor[Any]"], factory: Callable[[], "Actor[Any]"]) -> Ref[Any]: ...
    async def spawn_remote(
        self, node: str, name: str, kind: type["Actor[Any]"], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Ref[Any]: ...


making: ContextVar[Context | None] = ContextVar("making", default=None)
"""The context of the actor that is being constructed, so that `self.me` and `self.rng` work in its constructor."""


class Actor(Generic[M]):
    """State, and handlers that alone touch it.

    1. Name the messages it understands: `class Counter(Actor[AddMsg | TotalMsg])`.
    2. Take collaborators through the constructor, refs among them.
    3. Mark one handler per message with `@on(Type)`. A class whose handlers and contract disagree does not import.

    The runtime calls `started`, then handlers one at a time, then `stopped`; between two of these calls nothing else
    runs in this actor. An exception in any of them is a failure, and `supervision` decides what follows.

    An actor reaches the world through `self.clock`, `self.rng` and messages; only then can it be replayed.
    """

    supervision: ClassVar[Supervision] = Restart()
    """What to do when it fails, unless its parent's `children_strategy` says so for all children."""
    children_strategy: ClassVar[Strategy] = OneForOne()
    """Which of its children start anew when one of them fails."""
    mailbox_capacity: ClassVar[int] = CAPACITY
    """Messages its mailbox holds."""
    recorded: ClassVar[bool] = True
    """Whether a recorder of the node records it."""
    handlers: ClassVar[Mapping[type[Message], str]] = {}
    """The handler's name, by message type."""

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
        ACTORS[f"{cls.__module__}:{cls.__qualname__}"] = cls

    async def started(self) -> None:
        """Run once, before the first message. Does nothing by default."""

    async def stopped(self) -> None:
        """Run once, after the last message of a graceful stop. Does nothing by default."""

    def snapshot(self) -> State | None:
        """Return all that this actor holds, so that `restore` makes another of its class go on as this one would.

        The flight recorder asks for it now and then, between two messages, and keeps the newest: a failure can then be
        replayed from there, long after the actor's birth is forgotten. Its random numbers are kept beside it.

        Returns:
            What a message may hold, by name: plain values, arrays, refs. Arrays are copied unless they are frozen;
            a message in it comes back as a dict of its fields. None where the state cannot be told now, and from a
            class that does not say, as by default.
        """
        return None

    def restore(self, state: State) -> None:
        """Hold what `snapshot` returned, from now on. Called on an actor just constructed, instead of `started`."""
        raise NotImplementedError(f"{type(self).__name__} takes snapshots, but does not say how to restore one")

    @property
    def me(self) -> Ref[M]:
        """This actor's own ref, to tell itself something or to be named in a message."""
        return Ref(self._context.address)

    @property
    def clock(self) -> Clock:
        """Time, as this actor may know it."""
        return self._context.clock

    @property
    def rng(self) -> np.random.Generator:
        """This actor's own random numbers: from the run's seed, its address and how often it was restarted."""
        return self._context.rng

    @property
    def log(self) -> FilteringBoundLogger:
        """A logger that names this actor on every line."""
        return self._context.log

    @property
    def run_directory(self) -> Path | None:
        """Where this run keeps its files, if it keeps any."""
        return self._context.run_directory

    @property
    def resume_from(self) -> Path | None:
        """Where that lies which an earlier process of this run saved, if this actor is to go on from it.

        None for an actor that begins anew, as one does that was restarted.
        """
        return self._context.resume_from

    def stop(self) -> None:
        """Stop gracefully: take no new messages, handle what is queued, then call `stopped`."""
        self._context.request_stop()

    def watch(self, ref: Ref[Any]) -> None:
        """Ask for a `TerminatedMsg` (handled by `@on(TerminatedMsg)`) when that actor terminates, or if it has."""
        self._context.watch(ref)

    def after(self, delay: float, message: M) -> TimerHandle:
        """Tell itself `message` after `delay` seconds; `cancel` on the result takes it back."""
        return self._context.after(delay, message)

    async def offload(self, function: Callable[..., T], *args: Any) -> T:
        """Run a long computation off the event loop and return its result. This actor's mailbox waits meanwhile.

        `function` must not touch refs; whatever it is given belongs to it until it returns.
        """
        return await self._context.offload(function, *args)

    def spawn(self, name: str, kind: Callable[P, "Actor[X]"], *args: P.args, **kwargs: P.kwargs) -> Ref[X]:
        """Start `kind(*args, **kwargs)` as `<this actor>:<name>` on this node; it stops with this one."""
        return self._context.spawn_child(name, actor_class(kind), partial(kind, *args, **kwargs))

    async def spawn_on(
        self, node: str, name: str, kind: Callable[P, "Actor[X]"], *args: P.args, **kwargs: P.kwargs
    ) -> Ref[X]:
        """Start `kind(*args, **kwargs)` on the node of that name; it stops with this actor, and with its node.

        It is supervised where it lives, by the policy of its class. When that escalates, or its node is lost, this
        actor fails, as with a child here; one that handles `TerminatedMsg` is told of a lost node instead.

        Raises:
            SpawnRefused: the other node has not defined that class, an argument cannot travel or does not fit, or
                the name is taken.
            Unreachable: there is no such node, or it is gone.
        """
        return await self._context.spawn_remote(node, name, actor_class(kind), args, kwargs)

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
