"""The code around a node, as a sender."""

from collections.abc import Awaitable, Coroutine
from typing import TYPE_CHECKING, Any

from orchestra.actors.message import Message, Request

if TYPE_CHECKING:
    from orchestra.nodes.node import Node


class NodeSender:
    """Speaks for the code around a node: what is told from here has no actor as its sender."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._address = f"{node.name}/outside"

    def post(self, recipient: str, message: Message) -> Awaitable[None] | None:
        return self._node.post(self._address, recipient, message)

    def post_nowait(self, recipient: str, message: Message) -> None:
        self._node.post_nowait(self._address, recipient, message)

    def ask(self, recipient: str, request: Request[Any]) -> Coroutine[Any, Any, Any]:
        return self._node.asks.ask(self._address, recipient, request, ())
