"""What an actor knows outlives a restore and a checkpoint: its workers, its parameters, who has to save."""

from functools import partial

import numpy as np

from components.schedule import LinearSchedule
from components.worker import Worker
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
from messages.control import PAUSE

UP = (JoinMsg, InsertTransitionMsg, WorkerCountMsg, StateSavedMsg)
DOWN = (LoadParamsMsg, CollectMsg, SaveStateMsg)


def params(version: int) -> LoadParamsMsg:
    return LoadParamsMsg(version=version, params=np.full(2, version, np.float32), env_steps=10 * version)


async def proxy_with_workers(scene, up, *names):
    """Return a proxy and its workers, which are probes."""
    proxy = scene.node.spawn("proxy", WorkerProxy, to=up.ref)
    workers = [scene.probe(name, *DOWN) for name in names]
    for worker in workers:
        await proxy.tell(JoinMsg(role="worker", ref=worker.ref, environments=1))
    await scene.settle()
    return proxy, workers


def test_a_restored_proxy_counts_and_serves_the_workers_that_it_had(run, stage) -> None:
    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP)
            proxy, workers = await proxy_with_workers(scene, up, "one", "other")
            state = scene.node.cell(proxy.address).actor.snapshot()
            restored = scene.node.spawn("restored", WorkerProxy, to=up.ref)
            await scene.settle()
            scene.node.cell(restored.address).actor.restore(state)
            await restored.tell(params(3))
            await restored.tell(JoinMsg(role="worker", ref=scene.probe("late", *DOWN).ref, environments=1))
            await scene.settle()
            assert [[each.version for each in worker.of(LoadParamsMsg)] for worker in workers] == [[3], [3]]
            counts = [message.workers for message in up.of(WorkerCountMsg) if message.proxy == restored]
            assert counts == [3]

    run(main())


def test_a_proxy_has_its_workers_save_and_keeps_a_worker_waiting_that_joins_meanwhile(run, stage) -> None:
    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP)
            proxy, workers = await proxy_with_workers(scene, up, "one", "other")
            await proxy.tell(params(3))
            await proxy.tell(CollectMsg(episodes=None, received=0, unit="segments"))
            await proxy.tell(SaveStateMsg(env_steps=7, reply_to=up.ref))
            await scene.settle()
            asked = SaveStateMsg(env_steps=7, reply_to=proxy)
            assert [worker.of(SaveStateMsg) for worker in workers] == [[asked], [asked]]
            late = scene.probe("late", *DOWN)
            await proxy.tell(JoinMsg(role="worker", ref=late.ref, environments=1))
            await scene.settle()
            assert [type(each) for each in late.told] == [LoadParamsMsg]
            await proxy.tell(CollectMsg(episodes=None, received=0, unit="segments"))
            await scene.settle()
            assert late.of(CollectMsg) == [CollectMsg(episodes=None, received=0, unit="segments")]

    run(main())


def test_a_restored_worker_acts_with_the_parameters_that_it_had(run, stage, corridor, scripted) -> None:
    class Saved(corridor):
        def snapshot(self):
            return {"t": self._t.copy()}

        def restore(self, snapshot):
            self._t[:] = snapshot["t"]

    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP)
            kinds = {"env": partial(Saved, plan=((2,), (3,))), "policy": scripted, "to": up.ref, "n_envs": 2}
            spawn = partial(scene.node.spawn, exploration=LinearSchedule(1.0, 0.0, over=100), steps_per_turn=6, **kinds)
            refs = [spawn(name, Worker) for name in ("one", "other")]
            await refs[0].tell(params(3))
            await scene.settle()
            one, other = (scene.node.cell(ref.address).actor for ref in refs)
            state = one.snapshot()
            assert state["params"].tolist() == [3.0, 3.0]
            other.restore(state)
            restored = other.snapshot()
            assert restored["sync"]["version"] == 3
            assert restored["params"].tolist() == [3.0, 3.0]
            assert {name: restored[name] for name in ("version", "heard", "env_steps", "collecting")} == {
                "version": 3,
                "heard": 3,
                "env_steps": 30,
                "collecting": PAUSE,
            }

    run(main())
