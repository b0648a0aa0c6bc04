"""How an actor handles what it is told: one message at a time, in its own task or right where a request arrives."""

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from orchestra.actors.actor import Actor
from orchestra.actors.envelope import Envelope
from orchestra.actors.message import Lane, Message

if TYPE_CHECKING:
    from orchestra.actors.cell import Cell

BURST = 64
"""Messages handled before other actors of the node get their turn."""

_ELSEWHERE: tuple[Callable[[Any], Any], bool] = (print, True)


class Serving:
    """What one actor is busy with, and for how long it was."""

    __slots__ = ("_busy_s", "_busy_since", "_cell", "_handlers", "_here", "context", "current", "message_since")

    def __init__(self, cell: "Cell") -> None:
        self._cell = cell
        self.context = copy_context()
        """What its task runs in, and its handlers, wherever they are called."""
        self.current: Message | None = None
        """The message that it is busy with."""
        self.message_since = 0.0
        """When that began."""
        self._busy_s = 0.0
        self._busy_since: float | None = None
        self._handlers: dict[type[Message], tuple[Callable[[Any], Any], bool]] = {}
        self._here = 0
        """Requests answered where they arrived since its task had a turn."""

    def busy_s(self, now: float) -> float:
        """Return for how many seconds it had messages in its hands, until the time `now`."""
        return self._busy_s + (0.0 if self._busy_since is None else now - self._busy_since)

    def answer_here(self, envelope: Envelope, kind: type[Message]) -> bool:
        """Handle a request of type `kind` where it arrives, if the actor is idle; return whether that was done.

        It is done for plain handlers, and spares the asker a turn of the loop. It is the same in all other ways:
        nothing of the actor runs meanwhile, nothing waits in front, and others get their turn after a burst.
        """
        mailbox = self._cell.mailbox
        if self._here >= BURST or not mailbox.idle:
            return False
        call, is_async = self._handlers.get(kind, _ELSEWHERE)
        if is_async:
            return False
        self._here += 1
        self.context.run(self._answer_here, envelope, kind, call)
        return True

    def _answer_here(self, envelope: Envelope, kind: type[Message], call: Callable[[Any], Any]) -> None:
        cell = self._cell
        delivered = cell.delivered
        sender, message = envelope.sender, envelope.message
        recorder = cell.recorder
        self._busy_since = self.message_since = cell.node.clock.monotonic()
        if kind is not delivered.kind or sender != delivered.sender:
            delivered.turn(kind, sender)
        delivered.count += 1
        self.current = message
        try:
            if recorder is not None:
                recorder.delivered(envelope)
            cell.requests.answer_at_once(envelope, call)
            if recorder is not None:
                recorder.handled()
        except BaseException as error:
            # The incarnation fails where it waits, just as if it had handled this there.
            stops = isinstance(error, StopIteration)
            cell.mailbox.fail_reader(RuntimeError(f"{kind.__name__}: {error!r}") if stops else error)
        else:
            self.be_idle()
        if envelope.origin is not None and kind.lane is not Lane.SYSTEM:  # which needs no credit
            envelope.origin.consumed(envelope.recipient, envelope.nbytes)

    async def serve(self, actor: Actor[Any]) -> None:
        """Handle one message after the other, until the actor is to stop and there is none left."""
        cell = self._cell
        handlers = {kind: (getattr(actor, name), is_async) for kind, (name, is_async) in cell.contract.handlers.items()}
        self._handlers = handlers
        mailbox = cell.mailbox
        recorder = cell.recorder
        delivered = cell.delivered
        monotonic = cell.node.clock.monotonic
        loop = cell.node.loop
        burst = 0
        message: Message | None
        request: Envelope | None
        self._busy_since = self.message_since = monotonic()
        while True:
            item = mailbox.take()
            if item is None:
                message = request = None  # its arrays may lie in memory that the sender waits for
                self.be_idle()
                if cell.draining:
                    return
                await mailbox.news(loop)
                burst = self._here = 0
                self._busy_since = self.message_since = monotonic()
                continue
            if type(item) is tuple:
                sender, message = item[0], item[1]
                request = None
            else:
                assert isinstance(item, Envelope)
                sender, message = item.sender, item.message
                request = item if item.correlation else None
            kind = type(message)
            if kind is not delivered.kind or sender != delivered.sender:
                delivered.turn(kind, sender)
            delivered.count += 1
            if recorder is not None:
                recorder.delivered(item)
            handler = handlers.get(kind)
            if handler is None:
                cell.handle_system(message)
                if recorder is not None:
                    recorder.handled()
                continue
            call, is_async = handler
            self.current = message
            if is_async:
                self.message_since = monotonic()  # in a plain `def` nobody can look before it is over
            if not is_async:
                if request is None:
                    call(message)
                else:
                    cell.requests.answer_at_once(request, call)
            elif request is None:
                await call(message)
            else:
                await cell.requests.answer(request, call)
            if recorder is not None:
                recorder.handled()
            self.current = None
            burst += 1
            if burst == BURST:
                burst = 0
                await asyncio.sleep(0)
                self.message_since = monotonic()

    def be_idle(self) -> None:
        """Take note that no message is under way."""
        self.current = None
        if self._busy_since is not None:
            self._busy_s += self._cell.node.clock.monotonic() - self._busy_since
            self._busy_since = None
