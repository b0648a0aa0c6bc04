"""A proxy makes few messages of many, and many of few; and it knows who is there."""

import asyncio
from typing import ClassVar

import numpy as np
import pytest

from components.worker_proxy import WorkerProxy
from messages import (
    CollectMsg,
    InsertTransitionMsg,
    JoinMsg,
    LoadParamsMsg,
    SaveStateMsg,
    StateSavedMsg,
    WorkerCountMsg,
)
from orchestra.actors.cell import ActorFailed

UP = (JoinMsg, InsertTransitionMsg, WorkerCountMsg)
DOWN = (LoadParamsMsg, CollectMsg)


def params(version: int) -> LoadParamsMsg:
    return LoadParamsMsg(version=version, params=np.full(3, version, np.float32), env_steps=version)


async def joined(scene, proxy, *names):
    workers = [scene.probe(name, *DOWN) for name in names]
    for worker in workers:
        await proxy.tell(JoinMsg(role="worker", ref=worker.ref, environments=1))
    await scene.settle()
    return workers


def test_a_proxy_joins_as_one_and_counts_its_workers(run, stage) -> None:
    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP)
            proxy = scene.node.spawn("proxy", WorkerProxy, to=up.ref)
            one, _ = await joined(scene, proxy, "one", "other")
            await proxy.tell(JoinMsg(role="worker", ref=one.ref, environments=1))  # started anew, it says so again
            await scene.settle()
            assert up.told == [
                JoinMsg(role="proxy", ref=proxy, environments=0),
                *(WorkerCountMsg(proxy=proxy, workers=n, environments=n) for n in (1, 2, 2)),
            ]

    run(main())


def test_a_dead_worker_leaves(run, stage) -> None:
    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP)
            proxy = scene.node.spawn("proxy", WorkerProxy, to=up.ref)
            one, other = await joined(scene, proxy, "one", "other")
            await scene.kill(one)
            await scene.settle()
            await scene.stop(other.ref)
            await scene.settle()
            assert [message.workers for message in up.of(WorkerCountMsg)] == [1, 2, 1, 0]
            await proxy.tell(params(1))
            await scene.settle()
            assert not scene.node.cell(proxy.address).stopping

    run(main())


def test_experience_is_passed_on_in_its_order_and_without_a_copy(run, stage, episodes) -> None:
    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP)
            proxy = scene.node.spawn("proxy", WorkerProxy, to=up.ref)
            await scene.settle()
            told = [episodes(*lengths) for lengths in [(2,), (1, 3), (4,)]]
            for message in told:
                proxy.tell_nowait(message)
            await scene.settle()
            came = up.of(InsertTransitionMsg)
            assert [message.lengths.tolist() for message in came] == [[2], [1, 3], [4]]
            for one, other in zip(told, came, strict=True):
                assert all(getattr(one, name) is getattr(other, name) for name in one.wire.array_fields)

    run(main())


def test_a_proxy_whose_mailbox_is_full_does_not_wait_for_itself(run, stage, episodes) -> None:
    class Small(WorkerProxy):
        mailbox_capacity: ClassVar[int] = 2

    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP)
            proxy = scene.node.spawn("proxy", Small, to=up.ref)
            await scene.settle()
            async with asyncio.TaskGroup() as senders:
                for _ in range(9):  # two find room, the others wait for it
                    senders.create_task(proxy.tell(episodes(1)))
            await scene.settle()
            assert sum(message.segments for message in up.of(InsertTransitionMsg)) == 9

    run(main())


def test_what_came_is_passed_on_before_a_graceful_stop(run, stage, episodes) -> None:
    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP)
            proxy = scene.node.spawn("proxy", WorkerProxy, to=up.ref)
            await scene.settle()
            for _ in range(3):
                proxy.tell_nowait(episodes(1))
            await scene.stop(proxy)
            await scene.settle()
            assert sum(message.segments for message in up.of(InsertTransitionMsg)) == 3
            assert scene.node.statistics().dead_letters == 0

    run(main())


def test_one_load_reaches_every_worker(run, stage) -> None:
    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP)
            proxy = scene.node.spawn("proxy", WorkerProxy, to=up.ref)
            workers = await joined(scene, proxy, "a", "b", "c")
            await proxy.tell(params(7))
            await proxy.tell(CollectMsg(episodes=None, received=0, unit="segments"))
            await scene.settle()
            for worker in workers:
                (load,) = worker.of(LoadParamsMsg)
                assert (load.version, load.env_steps, load.params.tolist()) == (7, 7, [7.0] * 3)
                assert worker.of(CollectMsg) == [CollectMsg(episodes=None, received=0, unit="segments")]

    run(main())


def test_a_worker_that_joins_late_gets_the_newest_parameters_and_waits_for_credits(run, stage) -> None:
    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP)
            proxy = scene.node.spawn("proxy", WorkerProxy, to=up.ref)
            (early,) = await joined(scene, proxy, "early")
            assert early.told == []  # there was nothing to tell yet
            for message in (
                params(1),
                CollectMsg(episodes=None, received=0, unit="segments"),
                params(2),
                CollectMsg(episodes=0, received=0, unit="segments"),
            ):
                await proxy.tell(message)
                await scene.settle()
            (late,) = await joined(scene, proxy, "late")
            assert [message.version for message in late.of(LoadParamsMsg)] == [2]
            assert late.of(CollectMsg) == []  # it waits for a credit
            assert isinstance(late.told[0], LoadParamsMsg)

    run(main())


def test_a_proxy_shares_its_credits_and_those_of_a_dead_worker_go_to_the_others(run, stage, episodes) -> None:
    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP)
            proxy = scene.node.spawn("proxy", WorkerProxy, to=up.ref)
            one, other = await joined(scene, proxy, "one", "other")
            await proxy.tell(CollectMsg(episodes=6, received=0, unit="segments"))
            await scene.settle()
            assert [each.of(CollectMsg)[-1].episodes for each in (one, other)] == [3, 3]
            await proxy.tell(episodes(1, 1, sender=one.ref.address))
            await scene.kill(one)
            await scene.settle()
            assert {message.sender for message in up.of(InsertTransitionMsg)} == {proxy.address}
            assert {message.source for message in up.of(InsertTransitionMsg)} == {proxy.address}
            assert other.of(CollectMsg)[-1] == CollectMsg(episodes=4, received=0, unit="segments")
            await scene.kill(other)
            await proxy.tell(CollectMsg(episodes=9, received=2, unit="segments"))  # before the Orchestrator knows
            (late,) = await joined(scene, proxy, "late")
            assert late.of(CollectMsg) == []
            await proxy.tell(CollectMsg(episodes=3, received=2, unit="segments"))
            await scene.settle()
            assert late.of(CollectMsg) == [CollectMsg(episodes=3, received=0, unit="segments")]

    run(main())


def test_a_proxy_that_fails_takes_its_process_with_it(run, stage) -> None:
    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP)
            scene.node.spawn("proxy", WorkerProxy, to=up.ref)
            await scene.settle()
            await scene.stop(up.ref)
            scene.node.ref("here/proxy").tell_nowait(JoinMsg(role="worker", ref=up.ref, environments=1))
            await asyncio.Event().wait()

    with pytest.RaisesGroup(ActorFailed):
        run(main())


def test_a_moment_to_save_does_not_wait_for_a_worker_that_was_started_anew(run, stage) -> None:
    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP, StateSavedMsg)
            proxy = scene.node.spawn("proxy", WorkerProxy, to=up.ref)
            workers = [scene.probe(name, *DOWN, SaveStateMsg) for name in ("one", "other")]
            for worker in workers:
                await proxy.tell(JoinMsg(role="worker", ref=worker.ref, environments=1))
            await proxy.tell(SaveStateMsg(env_steps=7, reply_to=up.ref))
            await proxy.tell(StateSavedMsg(ref=workers[0].ref, error=""))
            await scene.settle()
            assert up.of(StateSavedMsg) == []
            await proxy.tell(JoinMsg(role="worker", ref=workers[1].ref, environments=1))  # it died, and nobody noticed
            await scene.settle()
            assert up.of(StateSavedMsg) == [StateSavedMsg(ref=proxy, error="")]

    run(main())


@pytest.mark.parametrize("who", ["its worker", "nobody"])
def test_a_proxy_passes_on_that_a_checkpoint_cannot_be_written(run, stage, tmp_path, who: str) -> None:
    async def main() -> None:
        async with stage(run_directory=tmp_path) as scene:
            up = scene.probe("up", *UP, StateSavedMsg)
            proxy = scene.node.spawn("proxy", WorkerProxy, to=up.ref)
            workers = [scene.probe(name, *DOWN, SaveStateMsg) for name in ("one", "other")]
            for worker in workers:
                await proxy.tell(JoinMsg(role="worker", ref=worker.ref, environments=1))
            error = "No space left on device" if who == "its worker" else ""
            await proxy.tell(SaveStateMsg(env_steps=7, reply_to=up.ref))
            await proxy.tell(StateSavedMsg(ref=workers[0].ref, error=error))
            await proxy.tell(StateSavedMsg(ref=workers[1].ref, error=""))
            await scene.settle()
            await proxy.tell(SaveStateMsg(env_steps=9, reply_to=up.ref))
            for worker in workers:
                await proxy.tell(StateSavedMsg(ref=worker.ref, error=""))
            await scene.settle()
            said = "" if who == "nobody" else "No space left on device"
            assert [message.error for message in up.of(StateSavedMsg)] == [said, ""]

    run(main())
