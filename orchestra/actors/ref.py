"""Ref: how an actor is reached, typed by what may be told to it."""

from collections.abc import Awaitable, Coroutine
from contextvars import ContextVar
from typing import Any, Generic, Protocol, TypeVar

from pydantic import GetCoreSchemaHandler
from pydantic_core import PydanticCustomError, core_schema

from orchestra.actors.message import Message, Request
from orchestra.errors import Unreachable

M_contra = TypeVar("M_contra", bound=Message, contravariant=True)
R = TypeVar("R")


class Sender(Protocol):
    """Whoever is speaking: an actor while it handles a message, or the code that runs a node."""

    def post(self, recipient: str, message: Message) -> Awaitable[None] | None:
        """Deliver `message`, or return what to await until there is room."""

    def post_nowait(self, recipient: str, message: Message) -> None:
        """Deliver `message` or raise `MailboxFull`."""

    def ask(self, recipient: str, request: Request[Any]) -> Coroutine[Any, Any, Any]:
        """Deliver `request` and wait for its answer."""


speaking: ContextVar[Sender | None] = ContextVar("speaking", default=None)
"""Who speaks in this task. It decides through which node a ref sends, and what the envelope names as sender."""


class Ref(Generic[M_contra]):
    """The address of an actor that understands `M_contra`. Equal addresses make equal refs; refs travel in messages.

    A ref sends through the node of whoever uses it. Delivery between two refs keeps its order, and happens at most
    once. A message to an actor that is stopping, or has stopped on another node, becomes a dead letter, counted and
    logged there: whoever must know that an actor ends watches it. Asks fail instead.
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
            Unreachable: nobody is at this address any longer.
        """
        sender = speaking.get() or self._home
        waiting = (sender or self._sender()).post(self.address, message)
        if waiting is not None:
            await waiting

    def tell_nowait(self, message: M_contra) -> None:
        """Deliver `message` at once, or raise `MailboxFull`, or `ActorStopped` where `tell` makes a dead letter."""
        self._sender().post_nowait(self.address, message)

    async def ask(self, request: Request[R]) -> R:
        """Deliver `request` and return its answer. An actor that stops answers everyone still waiting with an error.

        Raises:
            AskFailed: the handler raised.
            AskCycle: the actor is itself waiting, directly or not, for the one who asks.
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
