"""Delivery of remote messages: each message from another node goes into the mailbox of its recipient."""

from typing import Any, Protocol

from orchestra.actors.asks import PendingAsks
from orchestra.actors.cell import Cell
from orchestra.actors.mailbox import Envelope, Mailbox
from orchestra.actors.message import Lane, Message
from orchestra.actors.system_messages import TerminatedMsg, WatchMsg
from orchestra.clock import Clock
from orchestra.errors import NotUnderstood, Unreachable
from orchestra.nodes.watches import Watches
from orchestra.trace.recording.recorder import NodeRecorder


class DeliveryHost(Protocol):
    """A node, as the delivery of remote messages uses it."""

    cells: dict[str, Cell]
    """The actors of the node, by address."""
    asks: PendingAsks
    watches: Watches
    clock: Clock
    recorder: NodeRecorder | None

    def dead_letter(self, recipient: str, sender: str, message: Message, reason: str) -> None:
        """Count a message that no actor handles."""

    def notify_terminated(self, watcher: str, address: str, reason: str) -> None:
        """Send `watcher` a `TerminatedMsg` for the actor at `address`."""


class RemoteDelivery:
    """Delivers messages from other nodes. Implements the wire's `Receiver`. Holds everything back until `begin`."""

    def __init__(self, host: DeliveryHost) -> None:
        self._host = host
        self._cells = host.cells
        self._clock = host.clock
        self._recorder = host.recorder
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

    def witness(self, clock: int) -> float:
        """Merge a peer's Lamport clock; return the time of arrival in seconds, or 0.0 if nothing is recorded."""
        if self._recorder is None:
            return 0.0
        self._recorder.witness(clock)
        return self._clock.monotonic()

    def deliver(self, envelope: Envelope, *, alone: bool = False) -> None:
        """Put a message into the mailbox of its recipient; a request that came `alone` may be answered at once."""
        if self._early is not None:
            self._early.append(envelope)
            return
        queued = 0.0 if self._recorder is None else self.witness(envelope.clock)
        message = envelope.message
        if type(message) is TerminatedMsg:  # and not `isinstance`, which pydantic makes slow
            self._host.watches.mark_notified(envelope.recipient, message.address)
        cell = self._cells.get(envelope.recipient)
        if cell is None:
            reason = f"there is no actor at {envelope.recipient}"
            if isinstance(message, WatchMsg):
                self._host.notify_terminated(message.watcher.address, envelope.recipient, reason)
            else:
                self._undelivered(envelope, Unreachable(reason))
            return
        try:
            cell.receive(envelope, queued, alone=alone)
        except (NotUnderstood, Unreachable) as error:
            self._undelivered(envelope, error)

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
            cell.replies.withdraw(envelope)

    def answer(self, correlation: int, clock: int, value: Any) -> None:
        """Resolve a request of this node."""
        if self._recorder is not None:
            self._recorder.witness(clock)
        self._host.asks.resolve(correlation, value)

    def reject(self, correlation: int, clock: int, error: Exception) -> None:
        """Fail a request of this node."""
        self.witness(clock)
        self._host.asks.reject(correlation, error)

    # Inside

    def _undelivered(self, envelope: Envelope, error: Exception) -> None:
        if envelope.origin is not None and envelope.message.lane is not Lane.SYSTEM:  # which needs no credit
            envelope.origin.consumed(envelope.recipient, envelope.nbytes)
        if envelope.correlation:
            self._host.asks.fail(envelope, error)
        else:
            self._host.dead_letter(envelope.recipient, envelope.sender, envelope.message, str(error))
