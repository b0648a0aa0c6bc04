"""The runtime's own messages, which every cell and node understands."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from orchestra.actors.message import Lane, Message, Request
from orchestra.actors.ref import Ref

SYSTEM = "system"
"""Name of the actor that speaks for its node. Every node has one."""


class SystemMsg(Message):
    """Base class of the messages that come before all others: those of the runtime."""

    lane: ClassVar[Lane] = Lane.SYSTEM


class WatchMsg(SystemMsg):
    """Send `watcher` a `TerminatedMsg` when the recipient terminates."""

    watcher: Ref[Any]


class TerminatedMsg(SystemMsg):
    """A watched actor is gone: it stopped, it failed for good, or its node is lost."""

    address: str
    reason: str
    graceful: bool
    """True if it stopped on request, its own or another actor's."""
    lost: bool = False
    """True if its node is lost, so that the way in which it ended is unknown."""


class StopMsg(SystemMsg):
    """Stop the recipient: gracefully, after its queued messages, or at once."""

    graceful: bool = True


class InterruptMsg(SystemMsg):
    """Ctrl-C, SIGTERM or SIGHUP. A main actor that handles this decides itself when to stop; others are stopped."""

    state: Literal["interrupted", "stopped"] = "interrupted"
    """The state in which the run ends: `interrupted` by Ctrl-C, `stopped` by another signal or by a program."""


class ChildFailedMsg(SystemMsg):
    """A child failed for good: the recipient fails with it, and its own policy decides."""

    address: str
    """The child."""
    reason: str
    """The text of its failure."""


class HaltMsg(SystemMsg):
    """End this incarnation after the current message, because a sibling failed. A cell sends it only to itself."""


class WithdrawnMsg(Message):
    """Replaces a request that its asker withdrew before it was read."""


class SpawnedMsg(Message):
    """Reply to `SpawnMsg`: the address of the new actor, or the reason of the refusal."""

    address: str = ""
    refusal: str = ""


class SpawnMsg(SystemMsg, Request[SpawnedMsg]):
    """Start an actor on this node."""

    name: str
    kind: str
    """Its class, as `module:qualname`."""
    parent: str
    """Address of its parent on another node: the actor ends with it, and escalates to it."""
    args: list[Any]
    kwargs: dict[str, Any]


class StopActorMsg(SystemMsg, Request[tuple[str, ...]]):
    """Stop an actor of this node. Answered once it has stopped, with the texts of failures on the way."""

    address: str


class DeadlockProbeMsg(SystemMsg):
    """Follows a chain of waiting asks from node to node, to find a cycle."""

    askers: Annotated[tuple[str, ...], Field(min_length=1)]
    """The actors passed so far; each waits for the next."""
    asks: tuple[int, ...]
    """Correlations of their asks, each unique at the node of its asker."""
    recipient: str
    """The actor asked by the last of them."""


class StopNodeMsg(SystemMsg):
    """Stop the whole node gracefully."""


class CollectFilesMsg(SystemMsg, Request[str]):
    """Have the other hosts of the run send files to the head.

    The answer is the reason why the head cannot write them, or an empty text. Files of a lost host are missing.
    """

    pattern: str
    """The pattern of the files, below the run directory."""
    into: str
    """The folder of the head's run directory that they go into."""
