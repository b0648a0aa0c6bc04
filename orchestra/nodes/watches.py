"""Watches on the actors of other nodes: each watcher is notified once, also if the whole node is lost."""

from collections.abc import Awaitable
from typing import Protocol

from orchestra.actors.addresses import node_of
from orchestra.actors.message import Message
from orchestra.actors.ref import Ref
from orchestra.actors.system_messages import WatchMsg
from orchestra.errors import OrchestraError


class WatchHost(Protocol):
    """A node, as its watches use it."""

    def post_remote(self, sender: str, recipient: str, message: Message) -> Awaitable[None] | None:
        """Send `message` to another node; return an awaitable if that is not done at once."""

    def notify_terminated(self, watcher: str, address: str, reason: str, *, lost: bool = False) -> None:
        """Send `watcher` a `TerminatedMsg` for the actor at `address`; `lost` with its node."""


class Watches:
    """The watches that the actors of one node hold on those of others."""

    def __init__(self, host: WatchHost) -> None:
        self._host = host
        self._watched: dict[str, set[tuple[str, str]]] = {}
        """Watcher and target of each watch, by the target's node."""
        self._beginning: set[tuple[str, str]] = set()

    async def begin(self, watcher: str, target: str) -> None:
        """Notify `watcher`, an actor of this node, once when `target` on another node terminates or its node is lost.

        A second call before the notification, such as one by the next incarnation of a failed watcher, changes nothing.
        """
        peer = node_of(target)
        if (watcher, target) in self._beginning or (watcher, target) in self._watched.get(peer, ()):
            return
        self._beginning.add((watcher, target))
        try:
            sending = self._host.post_remote(watcher, target, WatchMsg(watcher=Ref(watcher)))
            if sending is not None:
                await sending
            self._watched.setdefault(peer, set()).add((watcher, target))
        except OrchestraError as error:
            self._host.notify_terminated(watcher, target, str(error))
        finally:
            self._beginning.discard((watcher, target))

    def mark_notified(self, watcher: str, target: str) -> None:
        """Remove the watch: `watcher` has been notified of the end of `target`."""
        self._watched.get(node_of(target), set()).discard((watcher, target))

    def peer_lost(self, peer: str, reason: str) -> None:
        """Notify all watchers of a lost node's actors."""
        for watcher, target in sorted(self._watched.pop(peer, set())):
            self._host.notify_terminated(watcher, target, reason, lost=True)
