"""An ask of a process of this host is waited for awake, if it is soon answered, and asleep otherwise."""

import asyncio
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from orchestra import Actor, Node, Request, on
from orchestra.wire.busy_poll import LIMIT_S, BusyPoll

Run = Callable[..., Any]

SECRET = b"the run's secret".ljust(32)
SHORT_S = LIMIT_S / 10


class Turns:
    """A loop and its time: what was to be called soon is called by `turn`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.due: list[Callable[[], None]] = []
        monkeypatch.setattr("orchestra.wire.busy_poll.perf_counter", lambda: self.now)

    def call_soon(self, call: Callable[[], None]) -> None:
        self.due.append(call)

    def turn(self, after: float = SHORT_S) -> None:
        self.now += after
        due, self.due = self.due, []
        for call in due:
            call()

    @property
    def awake(self) -> bool:
        """Whether the loop has something to do, and so does not sleep."""
        return bool(self.due)

    def ask(self, poll: BusyPoll, took: float) -> bool:
        """Ask, be answered after so many seconds, and return whether the loop was awake for it at first."""
        poll.begin()
        awake = self.awake
        self.turn(took)
        poll.end()
        self.turn()
        assert not self.awake
        return awake


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Turns:
    return Turns(monkeypatch)


@pytest.fixture
def poll(turns: Turns) -> BusyPoll:
    return BusyPoll(turns)  # type: ignore[arg-type]  # all that it needs of a loop


def test_the_loop_stays_awake_until_the_answer_is_there(turns: Turns, poll: BusyPoll) -> None:
    poll.begin()
    for _ in range(5):
        assert turns.awake
        turns.turn()
    poll.end()
    turns.turn()
    assert not turns.awake


def test_it_goes_to_sleep_when_the_answer_takes_longer_than_the_limit(turns: Turns, poll: BusyPoll) -> None:
    poll.begin()
    turns.turn(LIMIT_S * 1.01)
    assert not turns.awake


def test_it_is_not_tried_where_asks_take_long_and_tried_again_after_some_short_ones(
    turns: Turns, poll: BusyPoll
) -> None:
    assert turns.ask(poll, SHORT_S)
    assert [turns.ask(poll, 1.0) for _ in range(3)] == [True, False, False], "one long ask is enough"
    tries = [turns.ask(poll, SHORT_S) for _ in range(40)]
    assert not tries[0]
    assert tries[-1]


def test_asks_one_after_the_other_are_looked_for_once_a_turn(turns: Turns, poll: BusyPoll) -> None:
    poll.begin()
    poll.end()
    poll.begin()
    assert len(turns.due) == 1
    turns.turn()
    assert len(turns.due) == 1


class EchoMsg(Request[int]):
    n: int


class Echo(Actor[EchoMsg]):
    @on(EchoMsg)
    def echo(self, msg: EchoMsg) -> int:
        return msg.n


@pytest.mark.parametrize(
    ("address", "awake"), [("tcp://127.0.0.1:0", True), ("memory://{}", False)], ids=["tcp", "memory"]
)
def test_only_asks_of_processes_of_this_host_are_waited_for_awake(run: Run, address: str, awake: bool) -> None:
    async def scenario() -> None:
        async with (
            Node("here", listen=address.format("poll-here")).running() as here,
            Node(
                "there", listen=address.format("poll-there"), join=here.listening, secret=here.secret
            ).running() as there,
        ):
            there.spawn("echo", Echo)
            echo = here.ref("there/echo")
            assert await echo.ask(EchoMsg(n=1)) == 1
            with patch.object(BusyPoll, "begin", autospec=True, side_effect=BusyPoll.begin) as begin:
                assert [await echo.ask(EchoMsg(n=n)) for n in range(3)] == [0, 1, 2]
                assert begin.call_count == (3 if awake else 0)
                begin.reset_mock()
                assert await asyncio.gather(*(echo.ask(EchoMsg(n=n)) for n in range(3))) == [0, 1, 2]
                assert begin.call_count == (1 if awake else 0), "where others wait too, there is other work to do"

    run(scenario())
