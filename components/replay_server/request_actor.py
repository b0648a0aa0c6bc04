"""Actors that answer requests of a replay server's clients, at the server and at a proxy."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from functools import wraps
from typing import Any, ClassVar, TypeVar

from components.replay_buffers.closed import Closed
from components.replay_server import protocol
from components.replay_server.bounded_queue import Full
from components.replay_server.publications import Data, Publications
from orchestra import (
    Actor,
    Escalate,
    Message,
    Node,
    Ref,
    Request,
    Supervision,
    TerminatedMsg,
    Unreachable,
    UsageError,
    on,
)

T = TypeVar("T")
M = TypeVar("M", bound=Message)


def answers(
    request: type[Request[T]], *, context: Callable[[], Context | None] = lambda: None
) -> Callable[[Callable[[Any, Any], Awaitable[T]]], Callable[[Any, Any], "asyncio.Future[T]"]]:
    """Mark a coroutine method of an actor as the handler of `request`. It runs as a task: the mailbox does not wait.

    An exception that is the client's fault is answered by a `RefusedMsg`. If the method fails because an actor is
    unreachable, the request is abandoned without an answer.

    Args:
        request: type of the requests.
        context: returns the context of the task; by default that of the actor.
    """

    def mark(work: Callable[[Any, Any], Awaitable[T]]) -> Callable[[Any, Any], "asyncio.Future[T]"]:
        @on(request)
        @wraps(work)
        def handle(self: Any, msg: Request[T]) -> "asyncio.Future[T]":
            return asyncio.get_running_loop().create_task(_answer(work, self, msg), context=context())

        return handle

    return mark


async def _answer(work: Callable[[Any, Any], Awaitable[Any]], actor: Any, msg: Message) -> Any:
    try:
        return await work(actor, msg)
    except (ValueError, UsageError, Full, Closed, TimeoutError) as error:  # an InvalidExperience is a ValueError
        return protocol.RefusedMsg.of(error)
    except Unreachable as error:
        raise asyncio.CancelledError(str(error)) from error


class RequestActor(Actor[M]):
    """Base of the actors that clients send requests to.

    Args:
        node: node that the clients' nodes have joined.
        publications: queues of the clients' subscriptions.
    """

    supervision: ClassVar[Supervision] = Escalate()

    def __init__(self, node: Node, publications: Publications) -> None:
        self.node, self.publications = node, publications
        self._watched: set[str] = set()

    def reach(self, client: Ref[Any]) -> Ref[Any]:
        """Watch a client's actor, and return a ref to it that any task may use."""
        if client.address not in self._watched:
            self._watched.add(client.address)
            self.watch(client)
        return self.node.ref(client.address)

    def add_subscription(self, client: Ref[Any], topic: str) -> None:
        """Send publications on a topic to a client, unless its actor has terminated.

        Raises:
            InvalidExperience: the topic is malformed.
        """

        async def deliver(topic: str, data: Data) -> None:
            await client.ask(protocol.PublicationMsg(topic=topic, data=data))

        if client.address in self._watched:
            self.publications.subscribe(client.address, topic, deliver)

    @on(TerminatedMsg)
    async def client_terminated(self, msg: TerminatedMsg) -> None:
        self._watched.discard(msg.address)
        await self.remove(msg.address)

    async def remove(self, client: str) -> None:
        """Remove the client whose actor, at this address, has terminated."""
        raise NotImplementedError
