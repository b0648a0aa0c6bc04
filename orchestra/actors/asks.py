"""Requests and their answers: the asks of a node that wait, and the replies an actor owes."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from pydantic import ValidationError
from structlog.typing import FilteringBoundLogger

from orchestra.actors import codec
from orchestra.actors.addresses import node_of
from orchestra.actors.arrays import isolated
from orchestra.actors.deadlock import CycleProbes, WaitingAsk
from orchestra.actors.mailbox import Envelope
from orchestra.actors.message import Message, Request
from orchestra.actors.recorder import Recorder
from orchestra.actors.ref import Ref
from orchestra.actors.system_messages import SYSTEM, DeadlockProbeMsg
from orchestra.clock import Clock
from orchestra.errors import ActorStopped, AskCycle, AskFailed, Unreachable

_waiting: ContextVar[tuple[str, ...]] = ContextVar("waiting", default=())
"""The actors that wait for this task, outermost first. Tasks started by a handler inherit it."""


class Poll(Protocol):
    """Keeps the loop awake while an answer is about to come."""

    def begin(self) -> None: ...
    def end(self) -> None: ...


class Route(Protocol):
    """The sending side of a link."""

    def post(
        self,
        sender: str,
        recipient: str,
        message: Message,
        correlation: int = 0,
        chain: tuple[str, ...] = (),
        number: int = 0,
        clock: int = 0,
        *,
        at_once: bool = False,
    ) -> Awaitable[None] | None:
        """Send a message; return an awaitable that waits for room if there is none."""

    def cancel(self, correlation: int) -> None:
        """Withdraw a request."""

    @property
    def busy_poll(self) -> Poll | None:
        """The poll to use for a single ask, if the peer is on this host."""


class Network(Protocol):
    """The other nodes."""

    @property
    def routes(self) -> Mapping[str, Route]:
        """Routes by the address of an actor, as far as they are known."""

    def route_to(self, recipient: str) -> Route | None:
        """Return the route to an actor, if there is a link to its node.

        Raises:
            Unreachable: the address is one of this node.
        """

    async def connect(self, recipient: str) -> Route:
        """Return the route to an actor, connecting to its node if there is no link."""

    def is_unanswered(self, peer: str, correlation: int) -> bool:
        """Return whether this node owes `peer` an answer to that request."""


class LocalActor(Protocol):
    """An actor of the same node, as the recipient of messages."""

    replies: "PendingReplies"

    def deliver(self, sender: str, message: Message, number: int = 0, queued: float = 0.0) -> Awaitable[None] | None:
        """Queue `message`; return an awaitable that waits for room if there is none.

        `number` and `queued`, the current time, are those of a recorded sender, as in `mailbox.Queued`.
        """

    def deliver_nowait(self, sender: str, message: Message, number: int = 0, queued: float = 0.0) -> None:
        """Queue `message`, or raise `MailboxFull` or `ActorStopped`."""

    def deliver_request(self, envelope: Envelope) -> Awaitable[None] | None:
        """Queue a request; return an awaitable that waits for room if there is none."""


class PendingAsks:
    """The asks of one node that wait for their answers: those of its actors and of the code around it.

    A cycle of asks that grew out of one another is found before it closes, since every request carries the chain of
    actors that wait for it. `CycleProbes` finds the others.

    Args:
        node: the name of the node.
        cells: its actors, by address.
        network: the other nodes.
        clock: the runtime's.
        probing: whether to look for cycles of unrelated asks. It depends on real time.
    """

    def __init__(
        self, node: str, cells: Mapping[str, LocalActor], network: Network, clock: Clock, *, probing: bool = True
    ) -> None:
        self._node = node
        self._cells = cells
        self._network = network
        self._routes = network.routes
        self._probing = probing
        self._waiting: dict[int, WaitingAsk] = {}
        self._correlation = 0
        self.probes = CycleProbes(node, self._waiting, cells, clock, self._send_probe, network.is_unanswered)

    async def ask(
        self,
        asker: str,
        recipient: str,
        request: Request[Any],
        chain: tuple[str, ...],
        asked: set[asyncio.Future[Any]] | None = None,
        task: asyncio.Task[Any] | None = None,
        number: int = 0,
        clock: int = 0,
    ) -> Any:
        """Deliver `request` and return the answer. Cancelling this withdraws the request.

        Args:
            asker: address of the asking actor.
            recipient: address of the asked actor.
            request: what to ask.
            chain: the actors that wait for this answer, the asker last.
            asked: holds the future of the answer while it is awaited; an asker that ends removes it.
            task: the task that waits, if an actor asks.
            number: as in `Envelope`.
            clock: as in `Envelope`.
        """
        if recipient in chain:
            raise AskCycle(f"{' → '.join([*chain, recipient])}: this ask would wait for itself")
        waiting = self._waiting
        self._correlation = correlation = self._correlation + 1
        cell = self._cells.get(recipient)
        envelope = route = room = check = poll = None
        if cell is None:
            route = self._routes.get(recipient) or self._network.route_to(recipient)
            if route is not None:
                # Sent first, so that the peer works on it during the rest. The only ask of the node leaves at once:
                # no other will share its write.
                room = route.post(asker, recipient, request, correlation, chain, number, clock, at_once=not waiting)
                if not waiting and room is None and (poll := route.busy_poll) is not None:
                    poll.begin()
            check = request.answer_adapter().validator.validate_python
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        waiting[correlation] = WaitingAsk(future, check, asker, recipient, task)
        if asked is not None:
            asked.add(future)
            if self._probing:
                self.probes.begin()
        try:
            if cell is not None:
                envelope = Envelope(recipient, asker, request, 0, correlation, chain, None, number, clock)
                room = cell.deliver_request(envelope)
            elif route is None:
                route = await self._network.connect(recipient)
                alone = len(waiting) == 1
                room = route.post(asker, recipient, request, correlation, chain, number, clock, at_once=alone)
            if room is not None:
                await room
            return await future
        except (asyncio.CancelledError, ActorStopped, AskCycle) as error:
            cancelled = isinstance(error, asyncio.CancelledError) and (future.cancelled() or not future.done())
            ended = asked is not None and future not in asked
            if cancelled or ended or isinstance(error, AskCycle):
                if cell is not None and envelope is not None:
                    cell.replies.withdraw(envelope)
                elif route is not None:
                    route.cancel(correlation)
            raise
        finally:
            del waiting[correlation]
            if poll is not None:
                poll.end()
            if asked is not None:
                asked.discard(future)
            if future.done() and not future.cancelled():
                future.exception()  # mark as retrieved: a link that broke may have failed the sending first

    def answer(self, envelope: Envelope, value: Any) -> None:
        """Deliver the answer to a request of this node."""
        ask = self._waiting.get(envelope.correlation)
        if ask is not None and not ask.future.done():
            ask.future.set_result(_isolated_answer(value, type(envelope.message)))

    def fail(self, envelope: Envelope, error: Exception) -> None:
        """Deliver an error instead of the answer to a request of any node."""
        if envelope.origin is not None:
            envelope.origin.fail(envelope.correlation, error)
        else:
            self.reject(envelope.correlation, error)

    def resolve(self, correlation: int, value: Any) -> None:
        """Take an answer from another node."""
        ask = self._waiting.get(correlation)
        if ask is None or ask.future.done():
            return  # the ask was cancelled
        try:
            ask.future.set_result(value if ask.check is None else ask.check(value))
        except ValidationError as error:
            ask.future.set_exception(AskFailed(f"the answer is not what was asked for: {error}"))

    def reject(self, correlation: int, error: Exception) -> None:
        """Take an error instead of an answer."""
        ask = self._waiting.get(correlation)
        if ask is not None and not ask.future.done():
            ask.future.set_exception(error)

    def peer_lost(self, peer: str, error: Unreachable) -> None:
        """Fail all asks of a node that is gone."""
        for ask in self._waiting.values():
            if node_of(ask.recipient) == peer and not ask.future.done():
                ask.future.set_exception(error)

    def _send_probe(self, peer: str, probe: DeadlockProbeMsg) -> None:
        recipient = f"{peer}/{SYSTEM}"
        route = self._network.route_to(recipient)
        if route is not None:
            route.post(f"{self._node}/{SYSTEM}", recipient, probe)


@dataclass(eq=False, repr=False)
class PendingReplies:
    """The requests that one actor answers, now or later, and its own asks. None outlives its incarnation."""

    address: str
    """The actor."""
    give: Callable[[Envelope, Any], None]
    """Answers a request of this node."""
    fail: Callable[[Envelope, Exception], None]
    """Fails a request of any node."""
    recorder: Recorder | None
    """Records the actor, if it is recorded."""
    log: FilteringBoundLogger
    """The actor's."""
    task: asyncio.Task[None] | None = field(default=None, init=False)
    """The actor's task, once it runs."""
    withdrawn: int = field(default=0, init=False)
    """Requests withdrawn by their askers."""
    asked: set[asyncio.Future[Any]] = field(default_factory=set, init=False)
    """Answers awaited by the actor and by tasks it started."""
    _in_hand: Envelope | None = field(default=None, init=False)
    _cancellable: bool = field(default=False, init=False)
    """True while a coroutine handles the request in hand."""
    _cancelled: bool = field(default=False, init=False)
    """True if that request was cancelled because its asker withdrew it."""
    _parked: dict[int, tuple[asyncio.Future[Any], Envelope]] = field(default_factory=dict, init=False)

    @property
    def idle(self) -> bool:
        """True if the actor owes no answer and awaits none."""
        return self._in_hand is None and not self._parked and not self.asked

    # Answering

    def answer_at_once(self, envelope: Envelope, call: Callable[[Any], Any]) -> None:
        """Handle a request with a plain function and answer it; later, if the function returned a future."""
        self._in_hand = envelope
        token = _waiting.set(envelope.chain)
        try:
            self._answer(envelope, call(envelope.message))
        finally:
            _waiting.reset(token)
        self._in_hand = None

    async def answer(self, envelope: Envelope, call: Callable[[Any], Awaitable[Any]]) -> None:
        """Handle a request with a coroutine function, which is cancelled if the asker withdraws the request."""
        self._in_hand = envelope
        self._cancellable = True
        token = _waiting.set(envelope.chain)
        try:
            result = await call(envelope.message)
        except asyncio.CancelledError:
            if not self._was_withdrawn():
                raise
        else:
            if not self._was_withdrawn():  # else it finished in spite of being cancelled
                self._answer(envelope, result)
        finally:
            self._cancellable = False
            _waiting.reset(token)
        self._in_hand = None

    def withdraw(self, envelope: Envelope) -> None:
        """Withdraw a request: unread, in hand or parked."""
        self.withdrawn += 1
        if self.recorder is not None and (envelope is self._in_hand or id(envelope) in self._parked):
            self.recorder.withdrawn(envelope)
        if envelope is self._in_hand:
            if self.task is not None and self._cancellable and not self._cancelled:
                self._cancelled = True
                self.task.cancel()  # it awaits inside the handler of this request, and nowhere else
        elif id(envelope) in self._parked:
            future, _ = self._parked.pop(id(envelope))
            if all(other is not future for other, _ in self._parked.values()):
                future.cancel()
        else:
            envelope.withdrawn = True

    def fail_in_hand(self, error: Exception) -> None:
        """Fail the request in hand, if there is one."""
        envelope, self._in_hand = self._in_hand, None
        if self._cancelled:  # the handler failed while it was cancelled: that cancellation no longer counts
            self._cancelled = False
            if self.task is not None:
                self.task.uncancel()
        if envelope is not None:
            self._refuse(envelope, error)

    def answering_task(self, asker: str, correlation: int) -> asyncio.Task[Any] | None:
        """Return the task that will answer a request of the node `asker`: one that was parked, or the actor's own."""
        for future, envelope in self._parked.values():
            if envelope.correlation == correlation and node_of(envelope.sender) == asker:
                return future if isinstance(future, asyncio.Task) else self.task
        return self.task

    def drop(self, gone: ActorStopped) -> None:
        """Fail the parked requests, and the asks of tasks the actor started."""
        parked, self._parked = self._parked, {}
        for future, envelope in parked.values():
            self._refuse(envelope, gone)
            future.cancel()
        asked = list(self.asked)
        self.asked.clear()  # in place: an ask finds out by it that its asker is gone
        for future in asked:
            if not future.done():
                future.set_exception(ActorStopped(f"{self.address}, which asked, has stopped or failed"))

    def blame(self, error: BaseException) -> AskFailed:
        """Return the error for an asker whose request failed with `error`."""
        return AskFailed(f"{self.address}: {type(error).__name__}: {error}")

    # Asking

    def chain(self, *, holds: bool) -> tuple[str, ...]:
        """Return the actors that wait for an ask made now, this actor last.

        `holds` says that the actor's own task asks, so that no message is handled meanwhile.
        """
        waiting = _waiting.get()
        if self._parked and holds:
            # A parked future is resolved by a later message, so its asker waits for this ask too. A parked task is
            # not concerned: it ends by itself.
            parked = [
                address
                for future, envelope in self._parked.values()
                if not isinstance(future, asyncio.Task)
                for address in envelope.chain
            ]
            waiting = tuple(dict.fromkeys((*parked, *waiting)))
        return (*waiting, self.address)

    # Inside

    def _answer(self, envelope: Envelope, answer: Any) -> None:
        """Give an answer, or park the request until the future that is its answer is done."""
        if isinstance(answer, asyncio.Future):
            self._parked[id(envelope)] = (answer, envelope)
            answer.add_done_callback(partial(self._answer_parked, envelope))
            return
        origin = envelope.origin
        if origin is not None:
            origin.answer(envelope.correlation, answer)
        else:
            self.give(envelope, answer)
        if self.recorder is not None:
            self.recorder.replied(envelope, answer)

    def _refuse(self, envelope: Envelope, error: Exception) -> None:
        self.fail(envelope, error)
        if self.recorder is not None:
            self.recorder.refused(envelope, error)

    def _was_withdrawn(self) -> bool:
        """Return whether the request in hand was withdrawn, and nothing else cancelled the task."""
        if not self._cancelled:
            return False
        self._cancelled = False
        self._in_hand = None
        assert self.task is not None
        return self.task.uncancel() == 0

    def _answer_parked(self, envelope: Envelope, future: asyncio.Future[Any]) -> None:
        if self._parked.pop(id(envelope), None) is None:
            return
        if future.cancelled():
            self._refuse(envelope, ActorStopped(f"{self.address} gave up the answer"))
        elif (error := future.exception()) is not None:
            self._refuse(envelope, self.blame(error))
        else:
            try:
                self._answer(envelope, future.result())
            except Exception as unfit:
                self.log.error("answer cannot be given", request=type(envelope.message).__name__, exc_info=unfit)
                self._refuse(envelope, self.blame(unfit))


def _isolated_answer(value: Any, kind: type[Message]) -> Any:
    if value is None or isinstance(value, bool | int | float | str | bytes | Ref):
        return value
    if isinstance(value, Message) and value.wire.immutable:
        return isolated(value)
    assert issubclass(kind, Request)
    header, arrays = codec.Encoder().encode(value)
    payload = codec.payload_array(arrays)
    return kind.answer_adapter().validate_python(codec.decode(header, payload))
