"""The requests that an actor answers, now or later, and those whose answers it waits for."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

from orchestra.actors.envelope import Envelope, node_of
from orchestra.actors.system_messages import WithdrawnMsg
from orchestra.errors import ActorStopped, AskFailed

if TYPE_CHECKING:
    from orchestra.actors.cell import Cell

_waiting: ContextVar[tuple[str, ...]] = ContextVar("waiting", default=())
"""The actors that wait for what this task does, outermost first. A task that a handler starts inherits it."""


class PendingReplies:
    """The asks of one actor, in both directions. None outlives the incarnation that answers it, or that asks."""

    def __init__(self, cell: "Cell") -> None:
        self.withdrawn = 0
        """Requests whose asker gave up."""
        self._cell = cell
        self._in_hand: Envelope | None = None
        self._breakable = False
        """Whether the request in hand is handled by a coroutine, which may be broken off."""
        self._broken_off = False
        self._parked: dict[int, tuple[asyncio.Future[Any], Envelope]] = {}
        self.asked: set[asyncio.Future[Any]] = set()
        """What the actor, and tasks that it started, wait for."""

    @property
    def idle(self) -> bool:
        """Whether it owes no answer and waits for none."""
        return self._in_hand is None and not self._parked and not self.asked

    # Answering

    def answer_at_once(self, envelope: Envelope, call: Callable[[Any], Any]) -> None:
        """Have a request handled by a plain function, and answer it; later, if that returned a future."""
        self._in_hand = envelope
        token = _waiting.set(envelope.chain)
        try:
            answer = call(envelope.message)
            if isinstance(answer, asyncio.Future):
                self._park(envelope, answer)
            else:
                self._give(envelope, answer)
        finally:
            _waiting.reset(token)
        self._in_hand = None

    async def answer(self, envelope: Envelope, call: Callable[[Any], Awaitable[Any]]) -> None:
        """As `answer_at_once`, by a handler that may be broken off."""
        self._in_hand = envelope
        self._breakable = True
        token = _waiting.set(envelope.chain)
        try:
            result = await call(envelope.message)
        except asyncio.CancelledError:
            if not self._given_up():
                raise
        else:
            if not self._given_up():  # else it was asked to give up, and had its answer all the same
                if isinstance(result, asyncio.Future):
                    self._park(envelope, result)
                else:
                    self._give(envelope, result)
        finally:
            self._breakable = False
            _waiting.reset(token)
        self._in_hand = None

    def withdraw(self, envelope: Envelope) -> None:
        """Take back a request whose asker has given up: unread, in hand, or parked."""
        self.withdrawn += 1
        if self._cell.recorder is not None and (envelope is self._in_hand or id(envelope) in self._parked):
            self._cell.recorder.withdrawn(envelope)
        if envelope is self._in_hand:
            if self._cell.task is not None and self._breakable and not self._broken_off:
                self._broken_off = True
                self._cell.task.cancel()  # it awaits something in the handler of this request, and nowhere else
        elif id(envelope) in self._parked:
            future, _ = self._parked.pop(id(envelope))
            if all(other is not future for other, _ in self._parked.values()):
                future.cancel()
        else:
            envelope.correlation = 0
            envelope.message = WithdrawnMsg()

    def fail_in_hand(self, error: Exception) -> None:
        """Say that the request in hand, if it is one, has no answer."""
        envelope, self._in_hand = self._in_hand, None
        if self._broken_off:  # its asker gave up, and the handler failed of that: nothing is asked of the task any more
            self._broken_off = False
            if self._cell.task is not None:
                self._cell.task.uncancel()
        if envelope is not None:
            self._refuse(envelope, error)

    def task_for(self, asker: str, correlation: int) -> "asyncio.Task[Any] | None":
        """Return the task that was parked as the answer to a request of the node `asker`, if one was."""
        for future, envelope in self._parked.values():
            if envelope.correlation == correlation and node_of(envelope.sender) == asker:
                return future if isinstance(future, asyncio.Task) else None
        return None

    def drop(self, gone: ActorStopped) -> None:
        """Fail what is parked, and what this actor still waits for in tasks of its own."""
        parked, self._parked = self._parked, {}
        for future, envelope in parked.values():
            self._refuse(envelope, gone)
            future.cancel()
        asked = list(self.asked)
        self.asked.clear()  # in place: it is how an ask knows that its asker is gone
        for future in asked:
            if not future.done():
                future.set_exception(ActorStopped(f"{self._cell.address}, which asked, has stopped or failed"))

    def blame(self, error: BaseException) -> AskFailed:
        """Return what the asker is told of `error`."""
        return AskFailed(f"{self._cell.address}: {type(error).__name__}: {error}")

    # Asking

    def chain(self, *, holds: bool) -> tuple[str, ...]:
        """Return who waits for what is asked now: the actor, last, and all that wait for it.

        `holds` says whether it is asked in the actor's own task, so that no message is handled meanwhile.
        """
        waiting = _waiting.get()
        if self._parked and holds:
            # A parked answer is given by a later message, so whoever waits for it waits for this ask too. A task that
            # was parked is no such case: it comes to its end by itself.
            parked = [
                who
                for future, envelope in self._parked.values()
                if not isinstance(future, asyncio.Task)
                for who in envelope.chain
            ]
            waiting = tuple(dict.fromkeys((*parked, *waiting)))
        return (*waiting, self._cell.address)

    # Inside

    def _park(self, envelope: Envelope, future: asyncio.Future[Any]) -> None:
        self._parked[id(envelope)] = (future, envelope)
        future.add_done_callback(partial(self._answer_parked, envelope))

    def _give(self, envelope: Envelope, answer: Any) -> None:
        origin = envelope.origin
        if origin is not None:
            origin.answer(envelope.correlation, answer)
        else:
            self._cell.node.asks.answer(envelope, answer)
        if self._cell.recorder is not None:
            self._cell.recorder.answered(envelope, answer)

    def _refuse(self, envelope: Envelope, error: Exception) -> None:
        self._cell.node.asks.fail(envelope, error)
        if self._cell.recorder is not None:
            self._cell.recorder.refused(envelope, error)

    def _given_up(self) -> bool:
        """Whether the asker gave up the request in hand, and nobody wants more than this handler to end."""
        if not self._broken_off:
            return False
        self._broken_off = False
        self._in_hand = None
        assert self._cell.task is not None
        return self._cell.task.uncancel() == 0

    def _answer_parked(self, envelope: Envelope, future: asyncio.Future[Any]) -> None:
        if self._parked.pop(id(envelope), None) is None:
            return
        cell = self._cell
        if future.cancelled():
            self._refuse(envelope, ActorStopped(f"{cell.address} gave up the answer"))
        elif (error := future.exception()) is not None:
            self._refuse(envelope, self.blame(error))
        else:
            try:
                self._give(envelope, future.result())
            except Exception as unfit:
                cell.log.error("answer cannot be given", request=type(envelope.message).__name__, exc_info=unfit)
                self._refuse(envelope, self.blame(unfit))
