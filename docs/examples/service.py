"""Requests and answers across two processes: a judge computes in a thread, and a player asks it.

orchestra run docs/examples/service.py --moves 5
"""

import asyncio
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from orchestra import Actor, AskFailed, Axes, Message, Ref, Request, Topology, freeze, on


class Verdict(Message):
    """The judge's evaluation of a position."""

    value: float
    best: int


class JudgeMsg(Request[Verdict]):
    """Evaluate a position."""

    board: Annotated[NDArray[np.float32], Axes("float32", "rows", "columns")]


class GoMsg(Message):
    """Start asking."""


class Judge(Actor[JudgeMsg]):
    """Evaluates positions in a thread. Its node goes on meanwhile; its own mailbox waits."""

    @on(JudgeMsg)
    async def judge(self, msg: JudgeMsg) -> Verdict:
        if not msg.board.size:
            raise ValueError("an empty board cannot be judged")
        return await self.offload(judged, msg.board)


def judged(board: NDArray[np.float32]) -> Verdict:
    """Compute, however long it takes, without using an actor."""
    return Verdict(value=float(board.mean()), best=int(board.argmax()))


class Player(Actor[GoMsg]):
    """Asks for all its moves at once, and then for a malformed one."""

    def __init__(self, moves: int, judge: Ref[JudgeMsg]) -> None:
        self._moves = moves
        self._judge = judge

    async def started(self) -> None:
        await self.me.tell(GoMsg())

    @on(GoMsg)
    async def play(self, msg: GoMsg) -> None:
        boards = [freeze(self.rng.random((8, 8), dtype=np.float32)) for _ in range(self._moves)]
        verdicts = await asyncio.gather(*(self._judge.ask(JudgeMsg(board=board)) for board in boards))
        agreed = sum(verdict.best == board.argmax() for verdict, board in zip(verdicts, boards, strict=True))
        print(f"{agreed} of {self._moves} verdicts are right")
        try:
            await self._judge.ask(JudgeMsg(board=np.zeros((0, 8), np.float32)))
        except AskFailed as error:
            print(f"refused: {error}")
        self.stop()


def experiment(*, moves: Annotated[int, Field(ge=1, description="positions to evaluate")] = 5) -> Topology:
    """Lay out two processes; the command itself runs the first."""
    topology = Topology("service")
    player, judge = topology.node("player"), topology.node("judge")
    topology.until(player.spawn("player", Player, moves, judge=judge.spawn("judge", Judge)))
    return topology
