"""Experience is written once on its host, and a slow learner slows the workers within a bound of memory."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from team_experience import team_episodes

from components import WorkerProxy
from messages import InsertTransitionMsg, JoinMsg, WorkerCountMsg
from orchestra import Actor, Node, freeze, on
from orchestra.wire.flow_control import WINDOW_BYTES

SECRET = b"the run's secret".ljust(32)
MIB = 1 << 20


class Learner(Actor[JoinMsg | InsertTransitionMsg | WorkerCountMsg]):
    """Stands for the learner: takes experience while it may, and keeps the number in each message.

    Args:
        may: set while it takes experience.
        came: gets the numbers.
    """

    def __init__(self, may: asyncio.Event, came: list[int]) -> None:
        self._may, self._came = may, came

    @on(InsertTransitionMsg)
    async def insert(self, msg: InsertTransitionMsg) -> None:
        await self._may.wait()
        assert (msg["obs"] == msg["reward"][0]).all()
        self._came.append(int(msg["reward"][0]))

    @on(JoinMsg)
    def join(self, msg: JoinMsg) -> None:
        pass

    @on(WorkerCountMsg)
    def count(self, msg: WorkerCountMsg) -> None:
        pass


def experience(number: int, features: int) -> InsertTransitionMsg:
    """Return an episode of one step with about 8 bytes for each of the features, which all hold `number`."""
    return team_episodes(
        obs=freeze(np.full((2, 1, features), number, np.float32)),
        state=freeze(np.zeros((2, 1), np.float32)),
        available=freeze(np.ones((2, 1, 1), np.bool_)),
        actions=freeze(np.zeros((1, 1), np.int64)),
        reward=freeze(np.full(1, number, np.float32)),
        lengths=freeze(np.ones(1, np.int32)),
        terminated=freeze(np.ones(1, np.bool_)),
        won=freeze(np.ones(1, np.bool_)),
        versions=freeze(np.zeros(1, np.int32)),
        epsilon=freeze(np.zeros(1, np.float32)),
        newest_version=None,
        sender="",
        source="",
    )


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("shared_memory", [0, 128 * MIB])
def test_a_slow_learner_slows_the_workers_and_gets_everything(
    run: Callable[..., Any], address_of: Callable[[str], str], shared_memory: int
) -> None:
    size, total = 4 * MIB, 80

    async def main() -> None:
        may, came = asyncio.Event(), list[int]()
        options = {"secret": SECRET, "shared_memory": shared_memory}
        async with (
            Node("learner", listen=address_of("unix"), **options).running() as learner,
            Node("host", listen=address_of("unix"), join=learner.listening, **options).running() as host,
            Node("worker", join=learner.listening, **options).running() as worker,
        ):
            upstream = learner.spawn("learner", Learner, may, came)
            proxy = host.spawn("proxy", WorkerProxy, to=host.ref(upstream.address))
            told = 0

            async def play() -> None:
                nonlocal told
                for number in range(total):
                    await worker.ref(proxy.address).tell(experience(number, size // 8))
                    told += 1

            playing = asyncio.create_task(play())
            before = -1
            while told != before:  # until the worker waits
                before = told
                await turns(2000)
            assert 0 < told < total
            # In flight to the proxy and from it, and one message more for each of the three.
            assert told * size <= 2 * WINDOW_BYTES + 3 * size
            assert came == []
            may.set()
            await playing
            while len(came) < total:
                await turns(10)
            assert came == list(range(total))
            assert [node.statistics().dead_letters for node in (learner, host, worker)] == [0, 0, 0]

    run(main())


def test_a_proxy_on_the_host_of_the_learner_copies_no_experience(
    run: Callable[..., Any], address_of: Callable[[str], str]
) -> None:
    async def main() -> None:
        may, came = asyncio.Event(), list[int]()
        may.set()
        async with (
            Node("learner", listen=address_of("unix"), secret=SECRET).running() as learner,
            Node("host", listen=address_of("unix"), join=learner.listening, secret=SECRET).running() as host,
            Node("worker", join=learner.listening, secret=SECRET).running() as worker,
        ):
            upstream = learner.spawn("learner", Learner, may, came)
            proxy = host.spawn("proxy", WorkerProxy, to=host.ref(upstream.address))

            async def play(numbers: range) -> None:
                for number in numbers:
                    await worker.ref(proxy.address).tell(experience(number, MIB // 8))
                while len(came) < numbers.stop:
                    await turns(1)

            await play(range(1))  # the first of all goes by the stream, while the memory is offered
            await play(range(1, 2))
            await play(range(2, 3))
            to_learner = next(link for link in host.peers._sessions.values() if link.peer == "learner").shared_memory
            copied, shared = to_learner.copied_bytes, to_learner.sent_bytes
            await play(range(3, 30))
            assert to_learner.copied_bytes == copied
            assert to_learner.sent_bytes - shared > 27 * MIB
            assert came == list(range(30))

    run(main())
