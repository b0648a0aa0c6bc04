"""Keeps every score it hears of, and says who leads."""

import asyncio
from collections import defaultdict

from orchestra import Actor, Message, Node, Request, on


class ResultMsg(Message):
    """An episode ended."""

    team: str
    score: float


class LeaderMsg(Request[str]):
    """Who has the best mean score so far?"""


class Ledger(Actor[ResultMsg | LeaderMsg]):
    """Keeps scores by team."""

    def __init__(self) -> None:
        self._scores: defaultdict[str, list[float]] = defaultdict(list)

    @on(ResultMsg)
    def add(self, msg: ResultMsg) -> None:
        self._scores[msg.team].append(msg.score)

    @on(LeaderMsg)
    def leader(self, msg: LeaderMsg) -> str:
        return max(self._scores, key=lambda team: sum(self._scores[team]) / len(self._scores[team]))


async def main() -> None:
    """Tell a ledger two results, and ask it who leads."""
    async with Node("here").running() as node:
        ledger = node.spawn("ledger", Ledger)
        await ledger.tell(ResultMsg(team="marines", score=0.4))
        await ledger.tell(ResultMsg(team="stalkers", score=0.7))
        print(await ledger.ask(LeaderMsg()))


asyncio.run(main())
