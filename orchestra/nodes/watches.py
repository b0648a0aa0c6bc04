"""Who on a node watches which actors of others: each hears of an end once, also if it is that of their node."""

from typing import TYPE_CHECKING

from orchestra.actors.envelope import node_of
from orchestra.actors.ref import Ref
from orchestra.actors.system_messages import WatchMsg
from orchestra.errors import OrchestraError

if TYPE_CHECKING:
    from orchestra.nodes.node import Node
    from orchestra.nodes.peers import Peers


class Watches:
    """The watches of the actors of one node."""

    def __init__(self, node: "Node", peers: "Peers") -> None:
        self._node = node
        self._peers = peers
        self._watched: dict[str, set[tuple[str, str]]] = {}
        self._about_to_watch: set[tuple[str, str]] = set()

    async def begin(self, watcher: str, target: str) -> None:
        """Have `watcher`, an actor of this node, told once when `target`, of another, terminates or its node is lost.

        Whoever asks for that again, before it was told, an incarnation that follows one that failed for example, is not
        told twice.
        """
        peer = node_of(target)
        if (watcher, target) in self._about_to_watch or (watcher, target) in self._watched.get(peer, ()):
            return
        self._about_to_watch.add((watcher, target))
        try:
            link = await self._peers.link_to(peer)
            link.outbound.post(watcher, target, WatchMsg(watcher=Ref(watcher)))
            self._watched.setdefault(peer, set()).add((watcher, target))
        except OrchestraError as error:
            self._node.notify_terminated(watcher, target, str(error))
        finally:
            self._about_to_watch.discard((watcher, target))

    def mark_notified(self, watcher: str, target: str) -> None:
        """Take note that `watcher` has heard that `target` terminated: it is not told again."""
        self._watched.get(node_of(target), set()).discard((watcher, target))

    def peer_lost(self, peer: str, reason: str) -> None:
        """Tell all who watch an actor of a node that is gone."""
        for watcher, target in sorted(self._watched.pop(peer, set())):
            self._node.notify_terminated(watcher, target, reason, lost=True)
