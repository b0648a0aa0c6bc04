"""What waits for a host that is slow to take it, on the simulated network."""

import asyncio
from typing import Annotated, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from orchestra import Actor, Axes, Message, Node, freeze, on
from orchestra.testing import Simulation, run_seed

MIB = 1 << 20


class PieceMsg(Message):
    """A MiB of something of which every piece counts, as experience."""

    number: int
    content: Annotated[NDArray[np.uint8], Axes("uint8", "bytes")]


class Slow(Actor[PieceMsg]):
    """Takes nothing more once it has begun."""

    def __init__(self, taken: list[int], let_go: asyncio.Event) -> None:
        self._taken, self._let_go = taken, let_go

    @on(PieceMsg)
    async def take(self, msg: PieceMsg) -> None:
        self._taken.append(msg.number)
        await self._let_go.wait()


@pytest.mark.parametrize(("sender", "recipient"), [("head", "host"), ("host", "head")])
def test_at_most_64_mib_and_a_message_wait_for_a_slow_host_and_none_is_lost(sender: str, recipient: str) -> None:
    """In both directions: what the head has for it, and what it has for the head over a slow link."""

    async def scenario(sim: Simulation) -> None:
        taken: list[int] = []
        let_go = asyncio.Event()

        def setup(node: Node) -> None:
            if node.name == recipient:
                node.spawn("slow", Slow, taken, let_go)

        sim.node("head", setup)
        sim.node("host", setup)
        await sim.start()
        told: list[int] = []

        async def tell() -> None:
            content = freeze(np.zeros(MIB, np.uint8))
            for number in range(80):
                await sim.processes[sender].ref(f"{recipient}/slow").tell(PieceMsg(number=number, content=content))
                told.append(number)

        telling = asyncio.create_task(tell())
        await sim.until(lambda: taken)
        await asyncio.sleep(60.0)
        assert not telling.done(), "the sender does not wait"
        link: Any = sim.processes[sender].node.peers.find(recipient)
        assert link.session.kept_bytes <= 65 * MIB
        assert 32 <= len(told) <= 66  # one of them is being handled, and one may be admitted beyond the bound
        let_go.set()
        await telling
        await sim.until(lambda: len(taken) == 80)
        assert taken == list(range(80))

    run_seed(scenario, 1)
