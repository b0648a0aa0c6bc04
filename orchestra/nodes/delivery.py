"""Delivery of remote messages: each message from another node goes into the mailbox of its recipient."""

from collections.abc import Callable, Mapping
from typing import Any

from orchestra.actors.asks import PendingAsks
from orchestra.actors.cell import Cell
from orchestra.actors.envelope import Envelope
from orchestra.actors.mailbox import Mailbox
from orchestra.actors.message import Lane, Message
from orchestra.actors.system_messages import TerminatedMsg, WatchMsg
from orchestra.clock import Clock
from orchestra.errors import NotUnderstood, Unreachable
from orchestra.nodes.watches import Watches
from orchestra.trace.recording.recorder import Recorder


class RemoteDelivery:
    """Delivers messages from other nodes. Implements the wire's `Receiver`. Holds everything back until `begin`.

    Args:
        cells: the actors of the node, by address.
        dead_letter: called with a message that no actor handles, and the reason.
        notify_terminated: called with a watcher, the address of an actor that is gone, and the reason.
    """

    def __init__(
        self,
        cells: Mapping[str, Cell],
        asks: PendingAsks,
        watches: Watches,
        *,
        clock: Clock,
        recorder: Recorder | None,
        dead_letter: Callable[[Envelope, str], None],
        notify_terminated: Callable[[str, str, str], None],
    ) -> None:
        self._cells = cells
        self._asks = asks
        self._watches = watches
        self._clock = clock
        self._recorder = recorder
        self._dead_letter = dead_letter
        self._notify_terminated = notify_terminated
        self._early: list[Envelope] | None = []
        """Messages that arrived before `begin`: a peer may send as soon as it has said hello."""

    def begin(self) -> None:
        """Deliver the messages that were held back, and later ones as they arrive."""
        early, self._early = self._early or [], None
        for envelope in early:
            self.deliver(envelope)

    @property
    def logical(self) -> int:
        """The node's Lamport clock; 0 if nothing is recorded."""
        return 0 if self._recorder is None else self._recorder.logical

    def witness(self, clock: int) -> float | None:
        """Merge a peer's Lamport clock; return the time of arrival, or None if nothing is recorded."""
        if self._recorder is None:
            return None
        self._recorder.witness(clock)
        return self._clock.monotonic()

    def deliver(self, envelope: Envelope, *, alone: bool = False) -> None:
        """Put a message into the mailbox of its recipient; a request that came `alone` may be answered at once."""
        if self._early is not None:
            self._early.append(envelope)
            return
        if self._recorder is not None:
            self._recorder.witness(envelope.clock)
            envelope.queued = self._clock.monotonic()
        message = envelope.message
        kind = type(message)  # and not `isinstance`, which pydantic makes slow
        if kind is TerminatedMsg:
            assert isinstance(message, TerminatedMsg)
            self._watches.mark_notified(envelope.recipient, message.address)
        cell = self._cells.get(envelope.recipient)
        if cell is None:
            reason = f"there is no actor at {envelope.recipient}"
            if isinstance(message, WatchMsg):
                self._notify_terminated(message.watcher.address, envelope.recipient, reason)
            else:
                self._undelivered(envelope, Unreachable(reason), reason)
        elif kind not in cell.contract.understands:
            reason = cell.contract.refusal(kind)
            self._undelivered(envelope, NotUnderstood(reason), reason)
        elif alone and envelope.correlation and cell.serving.answer_here(envelope, kind):
            return
        else:
            try:
                if kind is TerminatedMsg:
                    cell.on_terminated(envelope)
                else:
                    cell.mailbox.put_nowait(envelope)
            except Unreachable as error:
                self._undelivered(envelope, error, str(error))

    def mailbox_for(self, recipient: str, kind: type[Message]) -> Mailbox | None:
        """Return the mailbox that takes messages of a type as they are; None if each has to be delivered singly."""
        if self._early is not None:
            return None
        cell = self._cells.get(recipient)
        if cell is None or cell.mailbox.closed or kind not in cell.contract.understands:
            return None
        return cell.mailbox

    def withdraw(self, envelope: Envelope) -> None:
        """Withdraw a request that was delivered: its asker no longer waits."""
        if self._early is not None and any(early is envelope for early in self._early):
            self._early = [early for early in self._early if early is not envelope]
        elif (cell := self._cells.get(envelope.recipient)) is not None:
            cell.requests.withdraw(envelope)

    def answer(self, correlation: int, clock: int, value: Any) -> None:
        """Resolve a request of this node."""
        if self._recorder is not None:
            self._recorder.witness(clock)
        self._asks.resolve(correlation, value)

    def reject(self, correlation: int, clock: int, error: Exception) -> None:
        """Fail a request of this node."""
        self.witness(clock)
        self._asks.reject(correlation, error)

    # Inside

    def _undelivered(self, envelope: Envelope, error: Exception, reason: str) -> None:
        if envelope.origin is not None and envelope.message.lane is not Lane.SYSTEM:  # which needs no credit
            envelope.origin.consumed(envelope.recipient, envelope.nbytes)
        if envelope.correlation:
            self._asks.fail(envelope, error)
        else:
            self._dead_letter(envelope, reason)
