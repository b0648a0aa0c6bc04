"""Where what an actor is told on its own node comes in: weighed, sharing nothing with its sender, into its mailbox."""

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from orchestra.actors import codec
from orchestra.actors.contract import Contract
from orchestra.actors.envelope import Envelope
from orchestra.actors.mailbox import Mailbox
from orchestra.actors.message import FLAT, Lane, Message, isolated, size_of
from orchestra.errors import ActorStopped, MailboxFull, NotUnderstood

if TYPE_CHECKING:
    from orchestra.nodes.node import Node


class Entrance:
    """How the actor at `address` is told something on its own node."""

    __slots__ = ("_address", "_contract", "_handed_over", "_mailbox", "_node", "_put_told")

    def __init__(self, node: "Node", address: str, contract: Contract, mailbox: Mailbox) -> None:
        self._node = node
        self._address = address
        self._contract = contract
        self._mailbox = mailbox
        self._handed_over = contract.handed_over
        self._put_told = mailbox.put_told

    # How it is spoken to

    def accept(self, sender: str, message: Message) -> Awaitable[None] | None:
        """Queue a message of this node; return what to await if there is no room yet."""
        try:
            weigh = self._handed_over[type(message)]
        except KeyError:
            pass
        else:
            if self._put_told((sender, message, FLAT if weigh is None else weigh(message))):
                return None
        return self.admit(self.enclose(sender, message))

    def accept_recorded(
        self, sender: str, message: Message, number: int, clock: int, now: float
    ) -> Awaitable[None] | None:
        """As `accept`, of a recorded sender: with the message's number, and when it was told by both clocks."""
        try:
            weigh = self._handed_over[type(message)]
        except KeyError:
            pass
        else:
            if self._put_told((sender, message, FLAT if weigh is None else weigh(message), number, now)):
                return None
        return self.admit(self.enclose_recorded(sender, message, number, clock, now))

    def enclose_recorded(self, sender: str, message: Message, number: int, clock: int, now: float) -> Envelope:
        """As `enclose`, of a recorded sender."""
        envelope = self.enclose(sender, message)
        envelope.number, envelope.clock, envelope.queued = number, clock, now
        return envelope

    def admit(self, envelope: Envelope) -> Awaitable[None] | None:
        """Queue what `enclose` returned; return what to await if there is no room yet."""
        mailbox = self._mailbox
        if mailbox.closed and envelope.message.lane is not Lane.SYSTEM:
            # As it would be if it came from another node. Who must know that an actor ends watches it.
            self._node.dead_letter(envelope, "the actor is stopping")
            return None
        return None if mailbox.put_nowait(envelope) else self._queue(envelope)

    async def _queue(self, envelope: Envelope) -> None:
        try:
            await self._mailbox.wait_for_room(envelope)
        except ActorStopped:
            self._node.dead_letter(envelope, "the actor stopped while its mailbox was full")

    def accept_nowait(self, sender: str, message: Message) -> None:
        """Queue a message of this node, or raise `MailboxFull`, or `ActorStopped` if this actor is stopping."""
        self.admit_nowait(self.enclose(sender, message))

    def admit_nowait(self, envelope: Envelope) -> None:
        """Queue what `enclose` returned, or raise `MailboxFull`, or `ActorStopped` if this actor is stopping."""
        if not self._mailbox.put_nowait(envelope):
            raise MailboxFull(f"{self._address} has {len(self._mailbox)} messages waiting")

    def enclose(self, sender: str, message: Message, correlation: int = 0, chain: tuple[str, ...] = ()) -> Envelope:
        """Return an envelope with `message`, weighed, that shares nothing mutable with its sender.

        Raises:
            NotUnderstood: this actor does not handle it.
        """
        kind = type(message)
        if kind in self._handed_over:
            weigh = self._handed_over[kind]
            nbytes = FLAT if weigh is None else weigh(message)
        elif kind not in self._contract.understands:
            raise NotUnderstood(self._contract.refusal(kind))
        elif not kind.wire.immutable:
            message, nbytes = codec.weighed_copy(message)
        else:
            message = isolated(message) if kind.wire.array_fields else message
            nbytes = size_of(message)
        return Envelope(self._address, sender, message, nbytes, correlation, chain)
