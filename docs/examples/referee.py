"""A test of an actor alone: the test controls the clock, the collaborator is a probe, and nothing sleeps."""

import asyncio
from typing import Any

from orchestra import Actor, Message, Node, Ref, on
from orchestra.testing import ManualClock, Probe, settle


class ScoreMsg(Message):
    """A team has scored."""

    points: int


class SilenceMsg(Message):
    """No team has scored for a while."""


class TimeOutMsg(Message):
    """A minute is over; the referee sends it to itself."""

    scores: int


class Referee(Actor[ScoreMsg | TimeOutMsg]):
    """Tells the ledger when a minute has passed without a score."""

    def __init__(self, ledger: Ref[SilenceMsg]) -> None:
        self._ledger = ledger
        self._scores = 0

    async def started(self) -> None:
        self.after(60.0, TimeOutMsg(scores=0))

    @on(ScoreMsg)
    def score(self, msg: ScoreMsg) -> None:
        self._scores += 1
        self.after(60.0, TimeOutMsg(scores=self._scores))

    @on(TimeOutMsg)
    async def time_out(self, msg: TimeOutMsg) -> None:
        if msg.scores == self._scores:
            await self._ledger.tell(SilenceMsg())


async def test_the_ledger_hears_of_a_minute_of_silence() -> None:
    """Let two minutes pass, with a score in the middle of the first."""
    clock = ManualClock()
    ledger = Probe(SilenceMsg)
    async with Node("here", clock=clock).running() as node:
        ref: Ref[Any] = ledger.start(node, "ledger")
        referee = node.spawn("referee", Referee, ref)
        await settle(node)
        clock.advance(30.0)
        await referee.tell(ScoreMsg(points=3))
        await settle(node)
        clock.advance(45.0)
        await settle(node)
        assert ledger.messages == []
        clock.advance(15.0)
        assert await ledger.heard(SilenceMsg) == [SilenceMsg()]


asyncio.run(test_the_ledger_hears_of_a_minute_of_silence())
