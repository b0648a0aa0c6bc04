"""Addresses, and the envelope: a message on its way."""

from dataclasses import dataclass
from typing import Any, Protocol

from orchestra.actors.message import Message
from orchestra.errors import UsageError


class Origin(Protocol):
    """The connection that a remote envelope came by; it wants to know when its message left the mailbox."""

    def consumed(self, recipient: str, nbytes: int) -> None: ...
    def answer(self, correlation: int, value: Any) -> None: ...
    def fail(self, correlation: int, error: Exception) -> None: ...


@dataclass(slots=True)
class Envelope:
    """A message with its addresses. `correlation` is not 0 where an answer is awaited."""

    recipient: str
    sender: str
    message: Message
    nbytes: int = 128
    correlation: int = 0
    chain: tuple[str, ...] = ()
    """The actors that are waiting for this request's answer, outermost first."""
    origin: Origin | None = None
    number: int = 0
    """The sender's count of what it sent, this one included; 0 if it does not count."""
    clock: int = 0
    """The sender's Lamport clock when it sent this."""
    queued: float = 0.0
    """When it came to this node, by the node's monotonic clock; 0 where nothing is recorded."""


def node_of(address: str) -> str:
    """Return the node's part of `node/name`."""
    return address.partition("/")[0]


GUEST = "guest-"
"""How the names of guests begin: processes that look into a run without being a part of it."""


def is_guest(address: str) -> bool:
    """Whether this node, or the node of this address, is no part of the run that it has joined."""
    return address.startswith(GUEST)


def check_name(name: str, what: str) -> str:
    """Return `name` if it can be part of an address.

    Raises:
        UsageError: it is empty or holds other characters than letters, digits, `-`, `_`, `.`, `:`.
    """
    if name and all(c.isalnum() or c in "-_.:" for c in name):
        return name
    raise UsageError(f"{name!r} cannot name {what}: use letters, digits and - _ . :")
