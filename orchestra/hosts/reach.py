"""Checks whether one host can dial another one, as their nodes would, before a run that needs it begins."""

import asyncio
from collections.abc import Sequence

from orchestra.actors.message import Message, Request
from orchestra.errors import OrchestraError
from orchestra.nodes.join_point import usable
from orchestra.nodes.node import Node

REACH_S = 10.0
"""Seconds for a host to be reached."""


class ReachableMsg(Message):
    """Reply to `ListenMsg`."""

    address: str = ""
    """The address at which other hosts would reach a node of this host."""
    error: str = ""
    """The reason why no node can listen; empty if one can."""


class ListenMsg(Request[ReachableMsg]):
    """Listen like a node that other nodes dial, until the plan of the run comes."""

    address: str
    """The address to listen at, with a wildcard, and a port, a range of ports, or 0."""


class DialledMsg(Message):
    """Reply to `DialMsg`."""

    error: str
    """The reason why the address cannot be reached; empty if it can."""


class DialMsg(Request[DialledMsg]):
    """Try to reach another host."""

    address: str
    """The candidates from the reply of that host to `ListenMsg`."""


class Reach:
    """Listens and dials for a host, with the secret and the credentials of its run.

    Args:
        node: of this process.
        advertise: `HOST`, where other hosts reach this one; by default its interfaces.
    """

    def __init__(self, node: Node, advertise: Sequence[str] = ()) -> None:
        self._node = node
        self._advertise = advertise
        self._listening: asyncio.Task[None] | None = None

    async def listen(self, msg: ListenMsg) -> ReachableMsg:
        """Listen until `close`."""
        await self.close()
        told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._listening = asyncio.create_task(self._listen(msg.address, told), name=f"{self._node.name}: reach")
        try:
            return ReachableMsg(address=await told)
        except OrchestraError as error:
            return ReachableMsg(error=str(error))

    async def _listen(self, address: str, told: "asyncio.Future[str]") -> None:
        try:
            async with self._other("listens", listen=address, advertise=self._advertise).running() as node:
                told.set_result(node.listening)
                await asyncio.Event().wait()
        except OrchestraError as error:
            told.set_exception(error)

    async def dial(self, msg: DialMsg) -> DialledMsg:
        """Join the node that listens at an address, and leave it."""
        candidates = usable(msg.address, same_host=False)
        try:
            async with asyncio.timeout(REACH_S), self._other("dials", join=candidates).running():
                return DialledMsg(error="")
        except TimeoutError:
            return DialledMsg(error=f"no answer from {candidates} within {REACH_S:g} s")
        except OrchestraError as error:
            return DialledMsg(error=str(error))

    async def close(self) -> None:
        """Listen no longer."""
        if (listening := self._listening) is not None:
            self._listening = None
            listening.cancel()
            await asyncio.wait({listening})

    def _other(self, does: str, *, listen: str | None = None, join: str = "", advertise: Sequence[str] = ()) -> Node:
        node = self._node
        return Node(
            f"{node.name}-{does}",
            listen=listen,
            join=join or None,
            secret=node.secret,
            tls=node.tls,
            unencrypted=node.unencrypted,
            advertise=advertise,
            shared_memory=0,
        )
