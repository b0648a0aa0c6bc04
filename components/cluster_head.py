"""ClusterHead: the actor of a ClusterEnv in the learner's process. It passes messages between learner and nodes."""

import contextvars
import queue
from dataclasses import dataclass, field
from typing import Any, ClassVar

from components.downstream import Downstream, send_downstream
from components.published import PassesParameters, Published, SyncMessages
from messages import EnvsPlayedMsg, JoinMsg, LoadParamsMsg, PlayEnvsMsg, UseAgentMsg
from orchestra import Actor, Escalate, Message, Ref, Supervision, TerminatedMsg, on


@dataclass(eq=False)
class Bridge:
    """Connects the thread of the learner with the head's event loop."""

    heard: "queue.SimpleQueue[JoinMsg | EnvsPlayedMsg]" = field(default_factory=queue.SimpleQueue)
    """Messages from the nodes, in the order of their arrival."""
    head: Ref[Any] | None = None
    """None before the head has started."""
    published: Published | None = None
    _context: contextvars.Context | None = None

    def connect(self, head: Ref[Any], published: Published) -> None:
        """Use this head from now on; the head calls this method."""
        self.published, self._context, self.head = published, contextvars.copy_context(), head

    def tell(self, *messages: Message) -> None:
        """Send messages to the head, in this order, from the thread of the learner."""
        assert self.head is not None
        assert self._context is not None
        for told in [self._context.run(self.head.tell_threadsafe, message) for message in messages]:
            told.result()


BRIDGES: dict[str, Bridge] = {}
"""The bridges of this process, by name."""


class ClusterHead(
    PassesParameters, Actor[JoinMsg | EnvsPlayedMsg | PlayEnvsMsg | UseAgentMsg | LoadParamsMsg | SyncMessages]
):
    """Passes requests of the learner to the nodes, parameters to nodes, and the played steps to the learner.

    Args:
        bridge: name of the `Bridge` to the learner, in this process.
        workers: addresses of the workers, by the number of their node.
        pulls: True if workers ask for parameters; False if all parameters are sent to them.
    """

    supervision: ClassVar[Supervision] = Escalate()

    def __init__(self, *, bridge: str, workers: tuple[str, ...], pulls: bool) -> None:
        self._bridge, self._workers = BRIDGES[bridge], workers
        self._downstream = Downstream()
        self._published = Published(self._downstream, pulls=pulls)
        self._agent: UseAgentMsg | None = None

    async def started(self) -> None:
        self._bridge.connect(Ref(self.me.address), self._published)

    @on(JoinMsg)
    async def join(self, msg: JoinMsg) -> None:
        self.watch(msg.ref)
        self._downstream.join(msg.ref, 1, msg.environments)
        if self._agent is not None:
            await send_downstream(msg.ref, self._agent)
        await self._published.welcome(msg.ref)
        self._bridge.heard.put(msg)

    @on(TerminatedMsg)
    def leave(self, msg: TerminatedMsg) -> None:
        if self._published.leave(msg.address):
            self.log.warning("a node is lost; its next process goes on with new episodes", worker=msg.address)

    @on(UseAgentMsg)
    async def use_agent(self, msg: UseAgentMsg) -> None:
        self._agent = msg
        await self._downstream.tell(msg)

    @on(LoadParamsMsg)
    async def load(self, msg: LoadParamsMsg) -> None:
        await self._published.publish(msg)

    @on(PlayEnvsMsg)
    async def play(self, msg: PlayEnvsMsg) -> None:
        if (member := self._downstream.members.get(self._workers[msg.node])) is not None:
            await send_downstream(member.ref, msg)

    @on(EnvsPlayedMsg)
    def played(self, msg: EnvsPlayedMsg) -> None:
        self._bridge.heard.put(msg)
