"""What comes to a node from others: each message into the mailbox that it is for."""

from typing import TYPE_CHECKING

from orchestra.actors.envelope import Envelope
from orchestra.actors.mailbox import Mailbox
from orchestra.actors.message import Lane, Message
from orchestra.actors.system_messages import TerminatedMsg, WatchMsg
from orchestra.errors import NotUnderstood, Unreachable

if TYPE_CHECKING:
    from orchestra.actors.cell import Cell
    from orchestra.nodes.node import Node


class RemoteDelivery:
    """What links call with what they received. Nothing is delivered before `begin`.

    Args:
        node: whose actors it is for.
    """

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._cells: dict[str, Cell] = node.cells
        self._early: list[Envelope] | None = []
        """What came before there were actors to take it: a peer may speak as soon as it has greeted."""

    def begin(self) -> None:
        """Deliver what has come so far, and from now on what comes at once."""
        early, self._early = self._early or [], None
        for envelope in early:
            self.deliver(envelope)

    def deliver(self, envelope: Envelope, *, alone: bool = False) -> None:
        """Put what came from another node into its mailbox; a request that came `alone` may be answered at once."""
        if self._early is not None:
            self._early.append(envelope)
            return
        if self._node.recorder is not None:
            self._node.recorder.witness(envelope.clock)
            envelope.queued = self._node.clock.monotonic()
        message = envelope.message
        kind = type(message)  # and not `isinstance`, which pydantic makes slow
        if kind is TerminatedMsg:
            assert isinstance(message, TerminatedMsg)
            self._node.peers.watches.mark_notified(envelope.recipient, message.address)
        cell = self._cells.get(envelope.recipient)
        if cell is None:
            reason = f"there is no actor at {envelope.recipient}"
            if isinstance(message, WatchMsg):
                self._node.notify_terminated(message.watcher.address, envelope.recipient, reason)
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
        """Return where messages of a type can be put as they are; None if there is more to do about each."""
        if self._early is not None:
            return None
        cell = self._cells.get(recipient)
        if cell is None or cell.mailbox.closed or kind not in cell.contract.understands:
            return None
        return cell.mailbox

    def withdraw(self, envelope: Envelope) -> None:
        """Take back a request that came from another node, and that nobody there waits for any longer."""
        if self._early is not None and any(early is envelope for early in self._early):
            self._early = [early for early in self._early if early is not envelope]
        elif (cell := self._cells.get(envelope.recipient)) is not None:
            cell.requests.withdraw(envelope)

    # Inside

    def _undelivered(self, envelope: Envelope, error: Exception, reason: str) -> None:
        if envelope.origin is not None and envelope.message.lane is not Lane.SYSTEM:  # which needs no credit
            envelope.origin.consumed(envelope.recipient, envelope.nbytes)
        if envelope.correlation:
            self._node.asks.fail(envelope, error)
        else:
            self._node.dead_letter(envelope, reason)
