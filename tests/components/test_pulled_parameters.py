"""Where workers decide when to load, parameters travel to those that ask, once for a host; announcements go to all."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from team_experience import team_batch

from components.envs.base import EnvSpec
from components.orchestrator import REPORT_S, Orchestrator
from components.policies import ALGORITHMS
from components.replay_buffers import SampleToInsertRatio
from components.schedule import LinearSchedule
from components.synchronization import Synchronizer, SyncRule
from components.trainer import Trainer
from components.worker import RETRY_S, Worker
from components.worker_proxy import WorkerProxy
from messages import (
    BatchTrainingDataMsg,
    ClaimRoleMsg,
    CollectMsg,
    EvaluationResultMsg,
    InsertTransitionMsg,
    JoinMsg,
    LoadParamsMsg,
    ProbesMsg,
    ProgressMsg,
    PullParamsMsg,
    SampleBatchMsg,
    SaveCheckpointMsg,
    SyncMsg,
    TrainResultMsg,
    VersionMsg,
    WorkerCountMsg,
)
from orchestra import Arrays, PlayedMsg, freeze

UP = (JoinMsg, InsertTransitionMsg, WorkerCountMsg, PullParamsMsg, SyncMsg)
DOWN = (LoadParamsMsg, CollectMsg, ProbesMsg, VersionMsg)
NEVER = 10**9
SPEC = EnvSpec("corridor", n_agents=2, n_actions=3, obs_size=4, state_size=3, episode_limit=6)
RUNS = CollectMsg(episodes=None, received=0, unit="segments")
FAR = SyncRule("kl", float("inf"))
PROBES = ProbesMsg(number=0, inputs=Arrays({"last_actions": np.zeros((2, 1, 2), np.int64)}))


def params(version: int, value: float = 0.0) -> LoadParamsMsg:
    return LoadParamsMsg(version=version, params=freeze(np.full(2, value, np.float32)), env_steps=version * 10)


def news(version: int, **changed: Any) -> VersionMsg:
    return VersionMsg(
        **{"version": version, "required": -1, "env_steps": None, "probes": None, "outputs": Arrays()} | changed
    )


@pytest.fixture
def spawn(corridor, scripted):
    def start(scene, to, rule, name="worker", **changed):
        factory = {"env": partial(corridor, plan=((2,), (3,))), "policy": scripted, "to": to, "n_envs": 2}
        factory |= {"exploration": LinearSchedule(1.0, 0.0, over=100), "steps_per_turn": 6, "sync": rule}
        return scene.node.spawn(name, Worker, **factory | changed)

    return start


def orchestrator_among_probes(scene: Any, rule: SyncRule) -> tuple[Any, Any]:
    saved = {SaveCheckpointMsg: "a file"}
    trajectories = scene.probe("trajectories", InsertTransitionMsg, SampleBatchMsg, SaveCheckpointMsg, answers=saved)
    monitor = scene.probe("monitor", ProgressMsg, PlayedMsg, EvaluationResultMsg, SaveCheckpointMsg, answers=saved)
    ref = scene.node.spawn(
        "orchestrator",
        Orchestrator,
        trajectories=trajectories.ref,
        monitor=monitor.ref,
        limiter=SampleToInsertRatio(1.0, min_size=NEVER, error_buffer=NEVER),
        batch_size=1,
        goal_steps=NEVER,
        eval_interval=NEVER,
        checkpoint_interval=NEVER,
        sync=rule,
    )
    return ref, monitor


# A worker -------------------------------------------------------------------------------------------------------------


def test_a_worker_waits_for_what_it_has_asked_for(run, stage, spawn) -> None:
    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP)
            worker = spawn(scene, up.ref, SyncRule(max_lag=3))
            await worker.tell(RUNS)
            await worker.tell(news(4))
            await scene.settle()
            assert up.of(PullParamsMsg) == [PullParamsMsg(version=4, ref=worker)]
            assert up.of(InsertTransitionMsg) == []
            await worker.tell(params(4))
            played = await up.next(InsertTransitionMsg)
            assert set(played.versions.tolist()) == {4}
            await worker.tell(news(6))  # two behind: it goes on
            await up.next(InsertTransitionMsg)
            await worker.tell(news(7))
            await scene.settle()
            assert [msg.version for msg in up.of(PullParamsMsg)] == [4, 7]
            at_rest = len(up.of(InsertTransitionMsg))
            await worker.tell(params(8))  # there is a newer one by now
            while (await up.next(InsertTransitionMsg)).versions.max() < 8:
                pass
            # Steps are of the version that chose them, also where an episode goes on with another one, and none was
            # made after the news of version 7 and before its answer.
            versions = np.concatenate([msg.versions for msg in up.of(InsertTransitionMsg)])
            assert set(versions.tolist()) == {4, 8}
            assert at_rest < len(up.of(InsertTransitionMsg))
            await worker.tell(CollectMsg(episodes=0, received=0, unit="segments"))
            await scene.settle()

    run(main())


def test_exploration_follows_the_steps_of_the_run_between_loads_too(run, stage, spawn) -> None:
    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP)
            worker = spawn(scene, up.ref, FAR)
            for message in (news(0), params(0)):
                await worker.tell(message)
                await scene.settle()
            for version, (env_steps, epsilon) in enumerate([(25, 0.75), (100, 0.0)], start=1):
                await worker.tell(news(version, env_steps=env_steps))
                received = sum(msg.segments for msg in up.of(InsertTransitionMsg))
                await worker.tell(CollectMsg(episodes=1, received=received, unit="segments"))
                message = await up.next(InsertTransitionMsg)
                assert message.per_segment["epsilon"].tolist() == [epsilon] * message.segments
                await scene.settle()
            assert [msg.version for msg in up.of(PullParamsMsg)] == [0]

    run(main())


def test_decisions_are_reported_before_the_experience_that_follows_them(run, stage, spawn) -> None:
    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP)
            worker = spawn(scene, up.ref, FAR)
            for message in (RUNS, news(0), params(0)):
                await worker.tell(message)
            await up.next(InsertTransitionMsg)
            kinds = [type(msg) for msg in up.told if isinstance(msg, SyncMsg | InsertTransitionMsg)]
            assert kinds[:2] == [SyncMsg, InsertTransitionMsg]
            assert up.of(SyncMsg) == [SyncMsg(worker=worker.address, decisions=((None, 0, None, None, True),))]
            await worker.tell(CollectMsg(episodes=0, received=0, unit="segments"))
            await scene.settle()

    run(main())


# A proxy --------------------------------------------------------------------------------------------------------------


def test_a_proxy_asks_once_for_all_its_workers_and_gives_to_those_that_asked(run, stage) -> None:
    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP)
            proxy = scene.node.spawn("proxy", WorkerProxy, to=up.ref)
            workers = [scene.probe(name, *DOWN) for name in ("one", "two", "three")]
            for worker in workers:
                await proxy.tell(JoinMsg(role="worker", ref=worker.ref, environments=1))
            await proxy.tell(PROBES)
            await proxy.tell(news(1))
            for worker in workers[:2]:
                await proxy.tell(PullParamsMsg(version=1, ref=worker.ref))
            await scene.settle()
            assert up.of(PullParamsMsg) == [PullParamsMsg(version=1, ref=proxy)]
            loaded = params(2)
            await proxy.tell(loaded)
            await scene.settle()
            assert [len(worker.of(LoadParamsMsg)) for worker in workers] == [1, 1, 0]
            assert all(len(worker.of(VersionMsg)) == len(worker.of(ProbesMsg)) == 1 for worker in workers)
            assert all(worker.of(LoadParamsMsg)[0].params is loaded.params for worker in workers[:2])  # no copy
            await proxy.tell(PullParamsMsg(version=1, ref=workers[2].ref))  # what it has is enough
            await scene.settle()
            assert [msg.version for msg in workers[2].of(LoadParamsMsg)] == [2]
            assert len(up.of(PullParamsMsg)) == 1
            await proxy.tell(PullParamsMsg(version=3, ref=workers[0].ref))
            await scene.settle()
            assert [msg.version for msg in up.of(PullParamsMsg)] == [1, 3]

    run(main())


def test_a_worker_that_joins_late_hears_of_the_newest_version_and_of_its_probes(run, stage) -> None:
    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP)
            proxy = scene.node.spawn("proxy", WorkerProxy, to=up.ref)
            for message in (PROBES, news(1), news(2, probes=0)):
                await proxy.tell(message)
            late = scene.probe("late", *DOWN)
            await proxy.tell(JoinMsg(role="worker", ref=late.ref, environments=1))
            await scene.settle()
            assert [type(msg) for msg in late.told] == [ProbesMsg, VersionMsg]
            assert late.told[1].version == 2

    run(main())


def test_the_request_of_a_worker_that_dies_is_forgotten_and_a_restored_proxy_keeps_the_others(run, stage) -> None:
    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP)
            proxy = scene.node.spawn("proxy", WorkerProxy, to=up.ref)
            workers = [scene.probe(name, *DOWN) for name in ("one", "two")]
            for worker in workers:
                await proxy.tell(JoinMsg(role="worker", ref=worker.ref, environments=1))
                await proxy.tell(PullParamsMsg(version=1, ref=worker.ref))
            await proxy.tell(news(1))
            await scene.settle()
            await scene.kill(workers[0])
            await scene.settle()
            other = scene.node.spawn("other", WorkerProxy, to=up.ref)
            await scene.settle()
            one, two = (scene.node.cell(ref.address).actor for ref in (proxy, other))
            two.restore(one.snapshot())
            for ref in (proxy, other):
                await ref.tell(params(1))
            await scene.settle()
            assert len(workers[0].of(LoadParamsMsg)) == 0
            assert len(workers[1].of(LoadParamsMsg)) == 2  # of both proxies

    run(main())


# The Orchestrator -----------------------------------------------------------------------------------------------------


def test_between_loads_no_message_carries_parameters_and_their_bytes_are_loads_times_their_size(run, stage) -> None:
    async def main() -> None:
        async with stage() as scene:
            ref, monitor = orchestrator_among_probes(scene, FAR)
            members = [scene.probe(name, *DOWN) for name in ("host-0", "host-1")]
            for member in members:
                await ref.tell(JoinMsg(role="proxy", ref=member.ref, environments=0))
                await ref.tell(WorkerCountMsg(proxy=member.ref, workers=3, environments=6))
            await ref.tell(PROBES)
            digests = 0
            for version in range(20):
                outputs = Arrays({"logits": np.zeros((2, 1, 3), np.float16)})
                await ref.tell(news(version, probes=0, outputs=outputs))
                await ref.tell(params(version))
                await scene.settle()
                digests += outputs.nbytes
                if version in (0, 7, 13):
                    for member in members[: 1 if version else 2]:
                        await ref.tell(PullParamsMsg(version=version, ref=member.ref))
            await scene.settle()
            assert [[msg.version for msg in member.of(LoadParamsMsg)] for member in members] == [[0, 7, 13], [0]]
            assert [[msg.version for msg in member.of(VersionMsg)] for member in members] == [list(range(20))] * 2
            made = SyncMsg(worker="a/worker", decisions=((None, 0, None, None, True), (0, 1, 0.5, 0.25, False)))
            await ref.tell(made)
            scene.clock.advance(REPORT_S)
            await ref.tell(WorkerCountMsg(proxy=members[0].ref, workers=3, environments=6))
            await scene.settle()
            figures = dict(monitor.of(ProgressMsg)[-1].sync)
            size = params(0).params.nbytes
            assert figures == {
                "versions": 20,
                "params_sent": 4,
                "params_bytes": 4 * size,
                "digests": 40,
                "digest_bytes": 2 * (digests + PROBES.inputs.nbytes),
                "decisions": 2,
                "loads": 1,
                "loads_per_worker": 1.0,
                "divergence": 0.25,
            }

    run(main())


def test_a_request_for_a_version_that_has_not_come_waits_for_it(run, stage) -> None:
    async def main() -> None:
        async with stage() as scene:
            ref, _ = orchestrator_among_probes(scene, FAR)
            member = scene.probe("host-0", *DOWN)
            await ref.tell(JoinMsg(role="proxy", ref=member.ref, environments=0))
            await ref.tell(params(3))
            await ref.tell(PullParamsMsg(version=5, ref=member.ref))
            await scene.settle()
            await ref.tell(params(4))  # still an older one
            await scene.settle()
            assert member.of(LoadParamsMsg) == []
            await ref.tell(params(6))
            await scene.settle()
            assert [msg.version for msg in member.of(LoadParamsMsg)] == [6]

    run(main())


def test_a_digest_of_another_version_than_the_parameters_does_not_travel(run, stage) -> None:
    async def main() -> None:
        async with stage() as scene:
            ref, _ = orchestrator_among_probes(scene, FAR)
            member = scene.probe("host-0", *DOWN)
            await ref.tell(JoinMsg(role="proxy", ref=member.ref, environments=0))
            for message in (news(2, probes=0), params(1), params(2)):
                await ref.tell(message)
                await scene.settle()
            assert [(msg.version, msg.probes) for msg in member.of(VersionMsg)] == [(1, None), (2, 0)]

    run(main())


def test_synchronising_always_sends_every_version_to_all_and_counts_it(run, stage) -> None:
    async def main() -> None:
        async with stage() as scene:
            ref, monitor = orchestrator_among_probes(scene, SyncRule())
            members = [scene.probe(name, *DOWN) for name in ("host-0", "host-1")]
            for member in members:
                await ref.tell(JoinMsg(role="proxy", ref=member.ref, environments=0))
            for version in range(3):
                await ref.tell(params(version))
                await scene.settle()
            scene.clock.advance(REPORT_S)
            await ref.tell(WorkerCountMsg(proxy=members[0].ref, workers=1, environments=2))
            await scene.settle()
            assert [len(member.of(LoadParamsMsg)) for member in members] == [3, 3]
            figures = dict(monitor.of(ProgressMsg)[-1].sync)
            assert figures == {"versions": 3, "params_sent": 6, "params_bytes": 6 * params(0).params.nbytes}

    run(main())


# The Trainer ----------------------------------------------------------------------------------------------------------


def batch(number: int) -> BatchTrainingDataMsg:
    return team_batch(
        obs=np.ones((4, 6, 2, 4), np.float32),
        state=np.zeros((4, 6, 3), np.float32),
        available=np.ones((4, 6, 2, 3), np.bool_),
        actions=np.zeros((4, 5, 2), np.int64),
        reward=np.zeros((4, 5), np.float32),
        lengths=np.full(4, 5, np.int32),
        terminated=np.ones(4, np.bool_),
        epsilon=np.zeros(4, np.float32),
        weights=np.ones(4, np.float32),
        indices=np.arange(4),
        generations=np.arange(4),
        number=number,
    )


def test_a_trainer_publishes_a_digest_before_the_parameters_of_its_version(run, stage) -> None:
    async def main() -> None:
        async with stage() as scene:
            up = scene.probe(
                "up", ClaimRoleMsg, LoadParamsMsg, TrainResultMsg, ProbesMsg, VersionMsg, answers={ClaimRoleMsg: ""}
            )
            trainer = scene.node.spawn(
                "trainer", Trainer, spec=SPEC, policy=ALGORITHMS["iql"].learner, to=up.ref, sync=SyncRule("kl", 0.1)
            )
            for number in (1, 2):
                await trainer.tell(batch(number))
            await scene.settle()
            order = [(type(msg), getattr(msg, "version", None)) for msg in up.told]
            assert [each for each in order if each[0] is not TrainResultMsg] == [
                (ClaimRoleMsg, None),
                (LoadParamsMsg, 0),
                (ProbesMsg, None),
                (VersionMsg, 1),
                (LoadParamsMsg, 1),
                (VersionMsg, 2),
                (LoadParamsMsg, 2),
            ]
            state = scene.node.cell(trainer.address).actor.snapshot()
            assert state["probes"] == up.of(ProbesMsg)[0]

    run(main())


def test_a_trainer_that_is_started_again_counts_on_and_no_worker_loads_what_is_older_than_its_own(
    run, stage, tmp_path: Path
) -> None:
    kinds = (ClaimRoleMsg, LoadParamsMsg, TrainResultMsg, ProbesMsg, VersionMsg)
    factory = {"spec": SPEC, "policy": ALGORITHMS["iql"].learner, "sync": SyncRule("kl", 0.0)}
    worker, acting = Synchronizer(SyncRule("kl", 0.0)), ALGORITHMS["iql"].acting(SPEC, seed=0)
    loads: list[int] = []

    def hear(told: list[Any]) -> None:
        newest = {msg.version: msg for msg in told if isinstance(msg, LoadParamsMsg)}
        for msg in told:
            if isinstance(msg, ProbesMsg):
                worker.take_probes(msg)
            elif isinstance(msg, VersionMsg) and worker.decide(acting, msg):
                loads.append(msg.version)
                assert worker.loaded(newest[msg.version])
                acting.load(newest[msg.version].params)
            elif isinstance(msg, LoadParamsMsg) and worker.version is not None and msg.version <= worker.version:
                assert not worker.loaded(msg)

    async def part(resume_from: Path | None, *numbers: int) -> list[int]:
        async with stage(run_directory=tmp_path, resume_from=resume_from) as scene:
            up = scene.probe("up", *kinds, answers={ClaimRoleMsg: ""})
            trainer = scene.node.spawn("trainer", Trainer, to=up.ref, **factory)
            for number in numbers:
                await trainer.tell(batch(number))
            saved = await trainer.ask(SaveCheckpointMsg(env_steps=10))
            await scene.settle()
            assert Path(saved).parent == tmp_path / "checkpoints"
            hear(up.told)
            return [msg.version for msg in up.of(LoadParamsMsg)]

    async def main() -> None:
        assert await part(None, 1, 2) == [0, 1, 2]
        assert await part(tmp_path / "state" / "steps-0000000010", 3, 4) == [2, 3, 4]
        assert loads == [1, 2, 3, 4]
        assert worker.version == 4

    run(main())


# Losses ---------------------------------------------------------------------------------------------------------------


def test_a_worker_whose_proxy_is_lost_while_it_waits_asks_the_next_one(run, stage, spawn) -> None:
    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP)
            worker = spawn(scene, up.ref, FAR)
            for message in (RUNS, news(3)):
                await worker.tell(message)
            await scene.settle()
            assert [msg.version for msg in up.of(PullParamsMsg)] == [3]
            await scene.kill(up)
            await scene.settle()
            again = scene.probe("up", *UP)
            scene.clock.advance(RETRY_S)
            await again.hear(JoinMsg)
            for message in (RUNS, news(3)):  # what the next proxy tells one that joins
                await worker.tell(message)
            await scene.settle()
            assert [msg.version for msg in again.of(PullParamsMsg)] == [3]
            await worker.tell(params(3))
            await again.next(InsertTransitionMsg)
            await worker.tell(CollectMsg(episodes=0, received=0, unit="segments"))
            await scene.settle()

    run(main())


def test_workers_below_a_proxy_load_each_version_once_and_their_reports_reach_the_orchestrator(
    run, stage, spawn
) -> None:
    async def main() -> None:
        async with stage() as scene:
            ref, monitor = orchestrator_among_probes(scene, SyncRule(max_lag=2))
            proxy = scene.node.spawn("proxy", WorkerProxy, to=ref)
            for name in ("one", "two"):
                spawn(scene, proxy, SyncRule(max_lag=2), name)
            figures: dict[str, float] = {}
            for version in range(7):
                await ref.tell(params(version, version))
                while figures.get("decisions", 0) < 2 * (version + 1):
                    scene.clock.advance(REPORT_S)
                    figures = dict((await monitor.next(ProgressMsg)).sync)
            assert (figures["versions"], figures["params_sent"]) == (7, 4)
            assert figures["loads_per_worker"] == 4.0

    run(main())
