"""The equipment of a host before it plays: the head sends the run's code, its nodes' saved state, and the plan."""

from collections.abc import Callable
from typing import Any

from orchestra.actors.addresses import node_of
from orchestra.actors.ref import Ref
from orchestra.errors import OrchestraError
from orchestra.hosts.bundle import Bundle
from orchestra.hosts.messages import HEAD, CodeMsg, PlanMsg
from orchestra.hosts.transfer import FILES, FilePieceMsg, send_bytes
from orchestra.nodes.node import Node
from orchestra.runs.host_slots import Hosted, HostSlot

ARCHIVE = "code.zip"


async def equip(root: Node, run: str, code: Bundle, hosted: Hosted, slot: HostSlot, over: Callable[[], bool]) -> None:
    """Send a host what its agent needs, unless the agent is lost meanwhile.

    Args:
        root: sends it.
        run: the name of the run.
        code: of the run.
        hosted: the processes of the run.
        slot: of the host.
        over: returns whether the run ends, so that no plan is sent any more.
    """
    incarnation = slot.incarnation
    if slot.agent is None:
        return  # it was lost at once
    agent: Ref[Any] = root.ref(slot.agent.address)
    files: Ref[FilePieceMsg] = root.ref(f"{node_of(slot.agent.address)}/{FILES}")
    try:
        known = await agent.ask(CodeMsg(digest=code.digest, nbytes=code.nbytes))
        if not known.known:
            await send_bytes(files, code.data, ARCHIVE)
        await hosted.send_state(slot.slot, files)
        if slot.agent is None or slot.incarnation != incarnation or over():
            return
        nodes, plan = tuple(hosted.nodes_on(slot.slot)), hosted.plan_for(slot.slot)
        await agent.tell(PlanMsg(run=run, plan=plan, digest=code.digest, nodes=nodes))
    except OrchestraError as error:  # the host is lost, or has no room and ends: both are noticed elsewhere
        log = root.log.bind(actor=f"{root.name}/{HEAD}")
        log.warning("a host did not get the code of the run", host=slot.name, reason=str(error))
