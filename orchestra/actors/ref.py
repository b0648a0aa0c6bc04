"""Ref: the address of an actor, typed by the messages it understands."""

from collections.abc import Awaitable, Coroutine
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any, Generic, Protocol, TypeVar

from pydantic import GetCoreSchemaHandler
from pydantic_core import PydanticCustomError, core_schema

from orchestra.actors.message import Message, Request
from orchestra.errors import Unreachable

M_contra = TypeVar("M_contra", bound=Message, contravariant=True)
R = TypeVar("R")


class Sender(Protocol):
    """The sending side of a message: the context of an actor, or the code around a node."""

    def post(self, recipient: str, message: Message) -> Awaitable[None] | None:
        """Deliver `message`, or return an awaitable that waits for room."""

    def post_nowait(self, recipient: str, message: Message) -> None:
        """Deliver `message` or raise `MailboxFull`."""

    def post_threadsafe(self, recipient: str, message: Message) -> Future[None]:
        """Deliver `message` from any thread; return a future of its delivery."""

    def ask(self, recipient: str, request: Request[Any]) -> Coroutine[Any, Any, Any]:
        """Deliver `request` and return its answer."""


speaking: ContextVar[Sender | None] = ContextVar("speaking", default=None)
"""The sender of the current task. Refs send through it, and messages name its address."""


class Ref(Generic[M_contra]):
    """The address of an actor that understands `M_contra`. Equal addresses make equal refs; refs travel in messages.

    A ref sends through the node of the actor that uses it. Messages between two actors keep their order and arrive at
    most once. A message to an actor that is stopping, or has stopped on another node, becomes a dead letter, which is
    counted and logged there; an ask fails instead. Use `Actor.watch` to learn of the end of an actor.
    """

    __slots__ = ("_home", "address")

    orchestra_immutable = True

    def __init__(self, address: str, home: Sender | None = None) -> None:
        self.address = address
        self._home = home

    async def tell(self, message: M_contra) -> None:
        """Deliver `message`; wait while the mailbox is full.

        Raises:
            NotUnderstood: the actor does not handle this type.
            Unreachable: there is no actor at this address.
        """
        sender = speaking.get() or self._home
        waiting = (sender or self._sender()).post(self.address, message)
        if waiting is not None:
            await waiting

    def tell_nowait(self, message: M_contra) -> None:
        """Deliver `message` at once; raise `MailboxFull`, or `ActorStopped` where `tell` makes a dead letter."""
        self._sender().post_nowait(self.address, message)

    def tell_threadsafe(self, message: M_contra) -> Future[None]:
        """Deliver `message` from any thread, as the code around the node does.

        The future ends as `tell` would. The event loop's own thread must not wait for it.
        """
        return self._sender().post_threadsafe(self.address, message)

    async def ask(self, request: Request[R]) -> R:
        """Deliver `request` and return its answer. An actor that stops fails the requests it has not answered.

        Raises:
            AskFailed: the handler raised.
            AskCycle: the actor waits, directly or through others, for the asker.
            Unreachable: the actor stopped, or its node is gone.
        """
        answer: R = await self._sender().ask(self.address, request)
        return answer

    def _sender(self) -> Sender:
        sender = speaking.get() or self._home
        if sender is None:
            raise Unreachable(
                f"{self!r} belongs to a plan; it can be told something by an actor of a running node only"
            )
        return sender

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ref) and other.address == self.address

    def __hash__(self) -> int:
        return hash(self.address)

    def __repr__(self) -> str:
        return f"<Ref {self.address}>"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(_check_ref)


def _check_ref(value: Any) -> Ref[Any]:
    if not isinstance(value, Ref):
        raise PydanticCustomError("ref_type", "expected a Ref, got {got}", {"got": type(value).__name__})
    return value
