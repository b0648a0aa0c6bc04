"""The actor of the root that agents talk to."""

from typing import ClassVar

from orchestra.actors.actor import Actor, on
from orchestra.actors.addresses import node_of
from orchestra.actors.system_messages import TerminatedMsg
from orchestra.hosts.messages import AdmittedMsg, HostMsg, LeavingMsg, NodeStateMsg
from orchestra.hosts.output import OutputMsg
from orchestra.runs.head import Head


class HeadActor(Actor[HostMsg | NodeStateMsg | OutputMsg | LeavingMsg]):
    """Listens to agents.

    Args:
        head: what acts on it.
    """

    recorded: ClassVar[bool] = False

    def __init__(self, head: Head) -> None:
        self._head = head

    @on(HostMsg)
    def admit(self, msg: HostMsg) -> AdmittedMsg:
        answer = self._head.admit(msg)
        if not answer.refusal:
            self.watch(msg.agent)
        return answer

    @on(NodeStateMsg)
    def note(self, msg: NodeStateMsg) -> None:
        self._head.node_changed(msg)

    @on(OutputMsg)
    def write(self, msg: OutputMsg) -> None:
        self._head.output(msg)

    @on(LeavingMsg)
    def leave(self, msg: LeavingMsg) -> None:
        self._head.agent_leaves(msg.agent, msg.grace)

    @on(TerminatedMsg)
    def lost(self, msg: TerminatedMsg) -> None:
        self._head.agent_lost(node_of(msg.address), msg.reason)
