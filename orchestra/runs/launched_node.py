"""Runs the node of a launched process until the root, or the starter of the process, is gone."""

import asyncio

from orchestra.errors import Unreachable, UsageError
from orchestra.hosts.lifeline import Lifeline
from orchestra.nodes import stacks
from orchestra.nodes.node import Node
from orchestra.nodes.shutdown import stop_actors
from orchestra.runs.runner import recorded_on_request, spawn_all
from orchestra.runs.topology import Topology
from orchestra.wire.addresses import candidates_of
from orchestra.wire.transports.registry import transport_for

TIDY_UP_TRIES = 6
TIDY_UP_PAUSE_S = 0.01
"""The pause before the second try, doubled each time. A process that has joined at an agent which lives waits for all
of them, 0.63 s, before it ends."""
DROP_S = 0.2
"""Seconds for the actors of a node to stop whose root or starter is dead, before they are aborted."""


async def run_node(topology: Topology, node: Node, join: str, lifeline: Lifeline) -> str:
    """Run a launched node until the root, at `join`, asks it to stop or is gone, or its starter is dead.

    Return the reason. If the root or the starter is dead, nothing is saved, and no peer is waited for.
    """
    loop = asyncio.get_running_loop()
    abandoned: asyncio.Future[str] = loop.create_future()

    def abandon() -> None:
        if not abandoned.done():
            abandoned.set_result("the process that had started it is dead")

    root_lives = False
    try:
        # Before the node listens: the end of the starter must not end a process that has made a socket file.
        with (
            lifeline.ends_by(lambda: loop.call_soon_threadsafe(abandon)),
            stacks.on_request([node]),
            recorded_on_request([node]),
        ):
            async with node.running():
                spawn_all(topology, node)
                done, _ = await asyncio.wait({abandoned, node.stop_requested}, return_when=asyncio.FIRST_COMPLETED)
                reason = done.pop().result()
                root_lives = node.root in node.peers.names and not abandoned.done()
                if not root_lives:
                    await _drop(node, reason)
                return reason
    finally:
        if not root_lives:
            await clear(join)


async def _drop(node: Node, reason: str) -> None:
    """End the actors and the links of a node at once."""
    node.stopping = True
    for peer in node.peers.names:
        if (link := node.peers.find(peer)) is not None:
            link.end(Unreachable(reason))
    await stop_actors(node.cells, deadline=DROP_S)


async def clear(root: str) -> None:
    """Remove the socket files of a killed root. Each surviving process tries, and the first does it."""
    for tries in range(TIDY_UP_TRIES):
        try:
            for address in candidates_of(root):
                await transport_for(address).clear(address)
            return
        except UsageError:
            # The system closes the connections of a killed process before its listening socket.
            await asyncio.sleep(TIDY_UP_PAUSE_S * 2**tries)
