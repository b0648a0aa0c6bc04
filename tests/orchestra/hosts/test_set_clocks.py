"""A clock that is wrong, or set while a run goes on, changes nothing but the times that people read."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from orchestra import Actor, Message, on
from orchestra.simulation.process import SimulatedClock
from orchestra.testing import ManualClock, Simulation, run_seed
from orchestra.trace.format.effects import GENERATION_SHIFT
from orchestra.trace.recording.settings import TraceSettings


class SetClock(ManualClock):
    """A clock that people set."""

    ahead = timedelta()

    def now(self) -> datetime:
        return super().now() + self.ahead


def test_later_processes_of_a_node_come_later_in_its_trace_though_the_clock_was_set_back(tmp_path: Path) -> None:
    clock = SetClock()
    generations: dict[str, list[int]] = {"worker-1": [], "worker-10": []}
    for hours in (0, -1, 5, -9):
        clock.ahead = timedelta(hours=hours)
        for node, ending in (("worker-1", "trace"), ("worker-10", "sent")):  # an agent keeps the names of those it sent
            recorder = TraceSettings(mode="full").recorder(node, tmp_path, clock=clock, seed=1)
            assert recorder is not None
            recorder.close()
            generations[node].append(recorder.base >> GENERATION_SHIFT)
            (tmp_path / f"{node}.{generations[node][-1]}.0.{ending}").touch()
    first = int(clock.now().timestamp()) + 9 * 3600
    for found in generations.values():
        assert found == [first, first + 1, first + 5 * 3600, first + 5 * 3600 + 1]


class CountMsg(Message):
    n: int


class Counter(Actor[CountMsg]):
    def __init__(self, counted: list[int]) -> None:
        self.counted = counted

    @on(CountMsg)
    def count(self, msg: CountMsg) -> None:
        self.counted.append(msg.n)


@pytest.mark.parametrize("jump", [timedelta(hours=1), timedelta(days=-400)])
def test_hosts_whose_clocks_are_set_while_they_run_lose_no_connection_and_no_message(
    jump: timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole schedule is the same as with clocks that go right: no event of the simulation depends on them."""

    def log(*, jumps: bool) -> list[str]:
        counted: list[int] = []

        def now(self: Any) -> datetime:
            seconds = self.monotonic()
            return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds) + (seconds > 1030) * jumps * jump

        monkeypatch.setattr(SimulatedClock, "now", now)

        async def scenario(sim: Simulation) -> None:
            head = sim.node("head", lambda node: node.spawn("counter", Counter, counted))
            host = sim.node("host", join="sim://head")
            await sim.start()
            for n in range(60):
                await host.ref("head/counter").tell(CountMsg(n=n))
                await asyncio.sleep(1.0)
                if n == 40:
                    sim.cut(head, host)
            assert counted == list(range(60))
            assert head.node.peers.names == ("host",)

        return run_seed(scenario, 3).log

    assert log(jumps=True) == log(jumps=False)
