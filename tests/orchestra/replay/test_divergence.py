"""The report of a replay that differs from its record: the difference, its place and its causes."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from orchestra import Actor, Axes, Message, Node, Ref, Request, on
from orchestra.errors import ReplayDiverged
from orchestra.replay.replay import Replay
from orchestra.testing import settle

Recorded = Callable[..., Path]


class ScoreMsg(Message):
    team: str
    score: float


class TotalsMsg(Message):
    totals: Annotated[NDArray[np.float64], Axes("float64", "teams")]
    count: int


class LeadMsg(Request[str]):
    """Who leads?"""


class GoMsg(Message):
    rounds: int


class Board(Actor[TotalsMsg]):
    def __init__(self) -> None:
        self.shown = 0

    @on(TotalsMsg)
    def show(self, msg: TotalsMsg) -> None:
        self.shown += msg.count


class Keeper(Actor[ScoreMsg | LeadMsg]):
    """Keeps scores, and has them shown."""

    bonus = 0.0

    def __init__(self, board: Ref[TotalsMsg]) -> None:
        self.board = board
        self.scores: dict[str, float] = {}
        self.heard = 0

    @on(ScoreMsg)
    async def add(self, msg: ScoreMsg) -> None:
        self.heard += 1
        gain = msg.score + self.bonus
        self.scores[msg.team] = self.scores.get(msg.team, 0.0) + gain
        totals = np.zeros(200)
        totals[: len(self.scores)] = list(self.scores.values())
        await self.board.tell(TotalsMsg(totals=totals, count=self.heard))

    @on(LeadMsg)
    def lead(self, msg: LeadMsg) -> str:
        return max(self.scores, key=lambda team: self.scores[team])


class Referee(Actor[GoMsg]):
    def __init__(self, keeper: Ref[Any]) -> None:
        self.keeper = keeper

    @on(GoMsg)
    async def go(self, msg: GoMsg) -> None:
        for number in range(msg.rounds):
            await self.keeper.tell(ScoreMsg(team="ab"[number % 2], score=float(number)))
        assert await self.keeper.ask(LeadMsg()) in "ab"


async def scene(node: Node) -> None:
    keeper = node.spawn("keeper", Keeper, node.spawn("board", Board))
    await node.spawn("referee", Referee, keeper).tell(GoMsg(rounds=4))
    await settle(node)


def keeper(folder: Path, **options: Any) -> Replay[Keeper]:
    return Replay(folder, Keeper, factory=lambda: Keeper(Ref("here/board")), **options)


def diverged(folder: Path, **options: Any) -> ReplayDiverged:
    with keeper(folder, **options) as replay, pytest.raises(ReplayDiverged) as caught:
        replay.run()
    return caught.value


def test_a_changed_handler_is_caught_at_the_first_delivery_that_differs(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = recorded(scene)
    monkeypatch.setattr(Keeper, "bonus", 0.25)
    said = str(diverged(folder)).splitlines()
    assert said[0] == "here/keeper differs in delivery 1, ScoreMsg from here/referee#1: told here/board TotalsMsg"
    assert said[1:4] == ["  field     totals[0]", "  recorded  0.0", "  replayed  0.25  (1 of 200 differ)"]
    line = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "board.tell" in text)
    shown = Path(__file__).relative_to(Path.cwd()) if Path(__file__).is_relative_to(Path.cwd()) else __file__
    assert said[4] == f"  at        {shown}:{line} in add"
    assert said[5] == "  because   here/referee sent it in its delivery 1, GoMsg from here/outside#?"


def test_a_change_within_the_tolerance_is_none(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = recorded(scene)
    monkeypatch.setattr(Keeper, "bonus", 1e-9)
    diverged(folder)
    with keeper(folder, tolerance=1e-6) as replay:
        replay.run()


def _silent(self: Keeper, msg: ScoreMsg) -> None:
    self.heard += 1


async def _twice(self: Keeper, msg: ScoreMsg) -> None:
    self.heard += 1
    for _ in range(2):
        self.scores[msg.team] = msg.score
        await self.board.tell(TotalsMsg(totals=np.zeros(200), count=self.heard))


async def _elsewhere(self: Keeper, msg: ScoreMsg) -> None:
    await Ref[Any]("here/wall").tell(TotalsMsg(totals=np.zeros(200), count=1))


async def _otherwise(self: Keeper, msg: ScoreMsg) -> None:
    await self.board.tell(TotalsMsg(totals=np.zeros(3), count=1))


def _broken(self: Keeper, msg: ScoreMsg) -> None:
    raise KeyError(msg.team)


async def _stuck(self: Keeper, msg: ScoreMsg) -> None:
    await self.board.tell(TotalsMsg(totals=np.zeros(200), count=1))
    await asyncio.get_running_loop().create_future()


async def _late(self: Keeper, msg: ScoreMsg) -> None:
    self.clock.monotonic()


async def _offloading(self: Keeper, msg: ScoreMsg) -> None:
    await self.offload(sum, [1])


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (_silent, ["missing action", "recorded  told here/board TotalsMsg(", "replayed  nothing more"]),
        (_twice, ["different action", "recorded  nothing more", "replayed  told here/board TotalsMsg("]),
        (_elsewhere, ["different message", "recorded  told here/board", "replayed  told here/wall"]),
        (_otherwise, ["field     totals", "recorded  float64[200]", "replayed  float64[3]"]),
        (_broken, ["it fails", "recorded  no failure", "replayed  KeyError: 'a'"]),
        (_stuck, ["it does not finish", "recorded  finished", "replayed  waits for a future of its own"]),
        (_late, ["different action", "replayed  read the monotonic clock"]),
        (_offloading, ["it waits for an event that was not recorded", "replayed  offload 1"]),
    ],
)
def test_every_kind_of_change_is_reported(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch, handler: Any, words: list[str]
) -> None:
    folder = recorded(scene)
    handler.__orchestra_on__ = ScoreMsg
    monkeypatch.setattr(Keeper, "add", handler)
    said = str(diverged(folder))
    for each in ["delivery 1, ScoreMsg", *words]:
        assert each in said


def test_a_different_answer_is_reported(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = recorded(scene)

    def last(self: Keeper, msg: LeadMsg) -> str:
        return "nobody"

    monkeypatch.setattr(Keeper, "lead", last)
    said = str(diverged(folder))
    assert "delivery 5, LeadMsg from here/referee#5: the answer to here/referee#5" in said
    assert "field     value\n  recorded  'b'\n  replayed  'nobody'" in said


def test_a_difference_is_reported_even_if_the_actor_catches_exceptions(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report does not go through the actor's own code, which may catch anything."""
    folder = recorded(scene)

    async def careless(self: Keeper, msg: ScoreMsg) -> None:
        try:
            await self.board.tell(TotalsMsg(totals=np.ones(200), count=1))
        except Exception:
            return

    monkeypatch.setattr(Keeper, "add", careless)
    assert "totals[0]" in str(diverged(folder))


def test_a_changed_class_and_another_library_version_are_noted(recorded: Recorded) -> None:
    from dataclasses import replace

    folder = recorded(scene)
    with keeper(folder) as replay:
        assert replay.notes == ()
        incarnation = replay.incarnation
        incarnation.birth = replace(incarnation.birth, source="0" * 64)
        incarnation.header = replace(incarnation.header, versions={"numpy": "0.9"})
        replay.seek(1)
        replay.rebuild(replay.options)
        assert replay.notes[0] == "the class Keeper has changed since the run"
        assert replay.notes[1].startswith("numpy was 0.9 in the run, and is ")
