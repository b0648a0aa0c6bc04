"""What is asked from a node: every ask that waits for its answer, and how circles of them are found."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from orchestra.actors import codec
from orchestra.actors.envelope import Envelope, node_of
from orchestra.actors.message import Message, Request, isolated
from orchestra.actors.ref import Ref
from orchestra.actors.system_messages import SYSTEM, DeadlockProbeMsg
from orchestra.clock import Handle
from orchestra.errors import ActorStopped, AskCycle, AskFailed, Unreachable

if TYPE_CHECKING:
    from orchestra.nodes.node import Node

PATIENCE_S = 1.0
"""How often the asks that wait are looked through. One that has waited since the last time sends a probe."""


@dataclass(slots=True, eq=False)
class _Ask:
    """One ask that waits."""

    future: asyncio.Future[Any]
    check: Callable[[Any], Any] | None
    """Returns its answer, validated, where that comes from another node."""
    asker: str
    recipient: str
    task: asyncio.Task[Any] | None
    """Who waits: the actor's own task, which handles no message meanwhile, or one that it started."""
    seen: bool = False
    """Whether it waited already when the asks were last looked through."""


class PendingAsks:
    """The asks of one node's actors, and of the code around it.

    A circle of asks that grew out of one another is found when it would close, since every request names those who
    wait for it. One of asks that have nothing to do with each other, as when two actors ask each other at the same
    time, is found by probes: an ask that waits for long sends one after its request; whoever will have to answer that,
    the actor's own task or one that it parked as the answer, sends it on if it waits for an ask itself; and an ask that
    its own probe comes back to waits for itself. Of all in the circle, the one of the actor whose address comes first
    is given up. A probe ends where there is nothing left to follow: the request must still be unanswered when it
    arrives, so what it has passed still waits.
    """

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._waiting: dict[int, _Ask] = {}
        self._correlation = 0
        self._sweep: Handle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    async def ask(
        self,
        asker: str,
        recipient: str,
        request: Request[Any],
        chain: tuple[str, ...],
        asked: set[asyncio.Future[Any]] | None = None,
        task: asyncio.Task[Any] | None = None,
        *,
        number: int = 0,
        clock: int = 0,
    ) -> Any:
        """Deliver `request` and wait for the answer. Whoever stops waiting withdraws the request.

        Args:
            chain: who is waiting, the asker last.
            asked: where the future of the answer is kept while it is awaited; an asker that ends takes it out.
            task: the task that waits; given by whoever is an actor.
            number: a recorded asker's count of what it sent.
            clock: its Lamport clock.
        """
        if recipient in chain:
            raise AskCycle(f"{' → '.join([*chain, recipient])}: this ask would wait for itself")
        node = self._node
        waiting = self._waiting
        self._correlation = correlation = self._correlation + 1
        cell = node.cells.get(recipient)
        envelope = way = room = check = poll = None
        if cell is None:
            way = node.peers.routes.get(recipient) or node.peers.route_to(recipient)
            if way is not None:
                # First of all: the peer works on it while the rest is seen to here. If no other waits, there is none
                # to wait for, to leave with it in one write.
                room = way.post(asker, recipient, request, correlation, chain, number, clock, at_once=not waiting)
                if not waiting and room is None and (poll := way.busy_poll) is not None:
                    poll.begin()
            check = request.answer_adapter().validator.validate_python
        future: asyncio.Future[Any] = node.loop.create_future()
        waiting[correlation] = _Ask(future, check, asker, recipient, task)
        if asked is not None:
            asked.add(future)
            if self._sweep is None and not node.deterministic:
                self._sweep = node.clock.call_later(PATIENCE_S, self._look_through)
        try:
            if cell is not None:
                envelope = cell.entrance.enclose(asker, request, correlation, chain)
                envelope.number, envelope.clock = number, clock
                if not cell.mailbox.put_nowait(envelope):
                    await cell.mailbox.wait_for_room(envelope)
            elif way is None:
                way = await node.peers.connect(recipient)
                room = way.post(asker, recipient, request, correlation, chain, number, clock, at_once=len(waiting) == 1)
            if room is not None:
                await room
            return await future
        except (asyncio.CancelledError, ActorStopped, AskCycle) as error:
            cancelled = isinstance(error, asyncio.CancelledError) and (future.cancelled() or not future.done())
            ended = asked is not None and future not in asked
            if cancelled or ended or isinstance(error, AskCycle):
                if cell is not None and envelope is not None:
                    cell.requests.withdraw(envelope)
                elif way is not None:
                    way.cancel(correlation)
            raise
        finally:
            del waiting[correlation]
            if poll is not None:
                poll.end()
            if asked is not None:
                asked.discard(future)
            if future.done() and not future.cancelled():
                future.exception()  # seen, also where the link that broke failed the sending first

    def answer(self, envelope: Envelope, value: Any) -> None:
        """Hand over the answer to a request of this node."""
        ask = self._waiting.get(envelope.correlation)
        if ask is not None and not ask.future.done():
            ask.future.set_result(_isolated_answer(value, type(envelope.message)))

    def fail(self, envelope: Envelope, error: Exception) -> None:
        """Say that a request has no answer."""
        if envelope.origin is not None:
            envelope.origin.fail(envelope.correlation, error)
        else:
            self.reject(envelope.correlation, error)

    def resolve(self, correlation: int, value: Any) -> None:
        """Take an answer that came from another node."""
        ask = self._waiting.get(correlation)
        if ask is None or ask.future.done():
            return  # whoever asked was cancelled
        try:
            ask.future.set_result(value if ask.check is None else ask.check(value))
        except ValidationError as error:
            ask.future.set_exception(AskFailed(f"the answer is not what was asked for: {error}"))

    def reject(self, correlation: int, error: Exception) -> None:
        """Take a failure instead of an answer."""
        ask = self._waiting.get(correlation)
        if ask is not None and not ask.future.done():
            ask.future.set_exception(error)

    def peer_lost(self, peer: str, error: Unreachable) -> None:
        """Fail the asks that a node which is gone will not answer."""
        for ask in self._waiting.values():
            if node_of(ask.recipient) == peer and not ask.future.done():
                ask.future.set_exception(error)

    def close(self) -> None:
        """Look for no more circles."""
        if self._sweep is not None:
            self._sweep.cancel()

    # Circles

    def follow(self, probe: DeadlockProbeMsg) -> None:
        """Take a probe that follows an ask of an actor of this node, and send it on, or find a circle."""
        node = self._node
        cell = node.cells.get(probe.recipient)
        asker, correlation = node_of(probe.askers[-1]), probe.asks[-1]
        if cell is None or not self._is_unanswered(asker, correlation):
            return
        answering = cell.requests.task_for(asker, correlation) or cell.task
        held = [number for number, ask in self._waiting.items() if ask.task is answering and ask.asker == cell.address]
        if not held:
            return  # it goes on by itself
        here = (cell.address, held[0])
        passed = list(zip(probe.askers, probe.asks, strict=True))
        if here == passed[0]:
            if here == min(passed):
                circle = " → ".join([*probe.askers, cell.address])
                self.reject(held[0], AskCycle(f"{circle}: each waits for an answer of the next"))
        elif here not in passed:
            askers, asks = zip(*passed, here, strict=True)
            self._send(DeadlockProbeMsg(askers=askers, asks=asks, recipient=self._waiting[held[0]].recipient))

    def _look_through(self) -> None:
        self._sweep = None
        cells = self._node.cells
        ours = [(number, ask) for number, ask in self._waiting.items() if ask.asker in cells]
        for number, ask in ours:
            if ask.seen:
                self._send(DeadlockProbeMsg(askers=(ask.asker,), asks=(number,), recipient=ask.recipient))
            ask.seen = True
        if ours:
            self._sweep = self._node.clock.call_later(PATIENCE_S, self._look_through)

    def _send(self, probe: DeadlockProbeMsg) -> None:
        node = self._node
        peer = node_of(probe.recipient)
        if peer == node.name:
            self.follow(probe)
        elif (link := node.peers.find(peer)) is not None:
            link.post(f"{node.name}/{SYSTEM}", f"{peer}/{SYSTEM}", probe)

    def _is_unanswered(self, asker: str, correlation: int) -> bool:
        if asker == self._node.name:
            ask = self._waiting.get(correlation)
            return ask is not None and not ask.future.done()
        return self._node.peers.is_unanswered(asker, correlation)


def _isolated_answer(value: Any, kind: type[Message]) -> Any:
    if value is None or isinstance(value, bool | int | float | str | bytes | Ref):
        return value
    if isinstance(value, Message) and value.wire.immutable:
        return isolated(value)
    assert issubclass(kind, Request)
    header, arrays = codec.Encoder().encode(value)
    payload = codec.payload_array(arrays)
    return kind.answer_adapter().validate_python(codec.decode(header, payload))
