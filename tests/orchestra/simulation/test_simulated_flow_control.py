"""A sender waits for credit and goes on as it comes back. A simulation shows at once that it does not."""

import asyncio

import pytest

from orchestra import Actor, Message, on
from orchestra.testing import Simulation, SimulationStuck, each_seed
from orchestra.wire.flow_control import ReceiveWindow
from orchestra.wire.sender import LinkSender

WINDOW = 8
MESSAGES = 50


class NumberMsg(Message):
    n: int


class Slow(Actor[NumberMsg]):
    """Takes a while for each message."""

    def __init__(self, seen: list[int]) -> None:
        self.seen = seen

    @on(NumberMsg)
    async def count(self, msg: NumberMsg) -> None:
        await asyncio.sleep(0.01)
        self.seen.append(msg.n)


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestra.wire.flow_control.WINDOW", WINDOW)


async def told_faster_than_handled(sim: Simulation) -> None:
    seen: list[int] = []
    root = sim.node("root", lambda node: node.spawn("slow", Slow, seen))
    leaf = sim.node("leaf")
    await sim.start()
    slow, deepest = leaf.ref("root/slow"), 0
    for n in range(MESSAGES):
        async with asyncio.timeout(10.0):
            await slow.tell(NumberMsg(n=n))
        deepest = max(deepest, root.node.cell("root/slow").mailbox.statistics().depth)
    await sim.until(lambda: len(seen) == MESSAGES, within=10.0)
    assert seen == list(range(MESSAGES))
    assert 1 < deepest <= WINDOW


def test_every_message_arrives_and_no_more_than_a_window_waits() -> None:
    each_seed(told_faster_than_handled, 5, limit=60.0)


def test_a_receiver_that_gives_no_credit_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReceiveWindow, "give_back", lambda *_, **__: None)
    with pytest.raises(TimeoutError):
        each_seed(told_faster_than_handled, 1, limit=60.0)


def test_a_sender_that_does_not_go_on_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LinkSender, "_release", lambda *_: None)
    with pytest.raises((TimeoutError, SimulationStuck)):
        each_seed(told_faster_than_handled, 1, limit=60.0)
