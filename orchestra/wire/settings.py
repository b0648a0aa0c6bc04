"""The settings of one node's links, and the view of a link that its parts are given."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from orchestra.clock import Clock
from orchestra.wire.blocks import SharedBlocks
from orchestra.wire.credentials import Credentials
from orchestra.wire.frames import Limits


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """The settings that all links of a node share."""

    name: str
    """The name of this node."""
    secret: bytes
    """The run's secret. Both sides of a connection prove that they know it."""
    incarnation: bytes
    """Random bytes that tell this process from an earlier one of the same name."""
    entropy: Callable[[int], bytes]
    """Returns that many random bytes."""
    clock: Clock
    limits: Limits
    """The largest frame that a peer may send."""
    deterministic: bool
    """True to send without batching and to set peers no deadlines, so that a single-process run repeats exactly."""
    shared_memory: SharedBlocks
    """The shared memory for large payloads to peers on this host."""
    tls: Credentials | None = None
    """The credentials for `tls://`; None for those in the folder that `ORCHESTRA_TLS_DIR` names."""
    unencrypted: bool = False
    """True if plain TCP beyond this host is allowed."""


class LinkState(Protocol):
    """The state of a link, as its parts read it."""

    peer: str
    """Name of the other node; empty before its hello."""
    ended: bool
    closing: bool
    """True once this side has said goodbye."""

    @property
    def local(self) -> bool:
        """True while connected to a peer that may be on this host."""
