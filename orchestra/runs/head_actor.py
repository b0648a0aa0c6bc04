"""The actor of the root that receives the messages of agents."""

import asyncio
from typing import Any, ClassVar

from orchestra.actors.actor import Actor, on
from orchestra.actors.addresses import node_of
from orchestra.actors.system_messages import TerminatedMsg
from orchestra.hosts.messages import (
    AdmittedMsg,
    AskHostMsg,
    HostFailedMsg,
    HostMsg,
    HostStatisticsMsg,
    HostUseMsg,
    LeaveHostMsg,
    LeavingMsg,
    LeftMsg,
    NodeStateMsg,
    PlayedMsg,
)
from orchestra.hosts.output import OutputMsg
from orchestra.runs.head import Head


class HeadActor(
    Actor[
        HostMsg
        | NodeStateMsg
        | OutputMsg
        | HostUseMsg
        | HostFailedMsg
        | PlayedMsg
        | LeavingMsg
        | AskHostMsg
        | LeaveHostMsg
    ]
):
    """Receives the messages of agents, and answers observers of the run.

    Args:
        head: acts on the messages.
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

    @on(AskHostMsg)
    def statistics(self, msg: AskHostMsg) -> Any:
        return asyncio.create_task(self._answer(msg))  # hosts that are silent take a while

    async def _answer(self, msg: AskHostMsg) -> HostStatisticsMsg:
        return HostStatisticsMsg(nodes=tuple(await self._head.statistics(msg.nodes)))

    @on(NodeStateMsg)
    def note(self, msg: NodeStateMsg) -> None:
        self._head.node_changed(msg)

    @on(OutputMsg)
    def write(self, msg: OutputMsg) -> None:
        self._head.output(msg)

    @on(HostUseMsg)
    def note_use(self, msg: HostUseMsg) -> None:
        self._head.host_used(msg)

    @on(HostFailedMsg)
    def note_failure(self, msg: HostFailedMsg) -> None:
        self._head.host_failed(msg)

    @on(PlayedMsg)
    def note_played(self, msg: PlayedMsg) -> None:
        self._head.played(msg)

    @on(LeavingMsg)
    def leave(self, msg: LeavingMsg) -> None:
        self._head.agent_leaves(msg.agent, msg.grace)

    @on(LeaveHostMsg)
    def leave_host(self, msg: LeaveHostMsg) -> Any:
        async def left() -> LeftMsg:
            return LeftMsg(refusal=await self._head.leave(msg.slot))

        return asyncio.create_task(left())

    @on(TerminatedMsg)
    def lost(self, msg: TerminatedMsg) -> None:
        self._head.agent_lost(node_of(msg.address), msg.reason)
