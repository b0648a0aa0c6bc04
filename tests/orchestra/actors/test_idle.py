"""An actor that waits for a message costs no processor time: the loop has nothing to do for it."""

import asyncio

from orchestra import Actor, Message, Node, on
from orchestra.testing import Simulation


class NoteMsg(Message):
    """Something to tell."""


class Sleeper(Actor[NoteMsg]):
    """Waits."""

    @on(NoteMsg)
    def note(self, msg: NoteMsg) -> None: ...


def _turns_of_an_hour(actors: int) -> int:
    """Return how often the loop had something to do in an hour of virtual time."""

    def spawn(node: Node) -> None:
        for number in range(actors):
            node.spawn(f"sleeper-{number}", Sleeper)

    async def main(sim: Simulation) -> int:
        sim.node("a", spawn)
        sim.node("b")
        await sim.start()
        await asyncio.sleep(10.0)
        before = sim.loop.steps
        await asyncio.sleep(3600.0)
        return sim.loop.steps - before

    sim = Simulation(0, limit=4000.0)
    return sim.run(main(sim))


def test_a_thousand_idle_actors_give_the_loop_nothing_to_do() -> None:
    alone, crowded = _turns_of_an_hour(0), _turns_of_an_hour(1000)
    # Heartbeats of two nodes, every two seconds. Bytes are torn elsewhere where other ones were drawn before them.
    assert abs(crowded - alone) < alone / 10
