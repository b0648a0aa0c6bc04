"""A federated replay buffer: experience stays in the shards of hosts, and batches are drawn from all of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from components.counters import RunCounters
from components.envs.base import EnvSpec
from components.federated_trajectories import EMPTY_S, FederatedTrajectories
from components.replay_buffers import FederatedReplay, PrioritizedEpisodeReplay, SampleToInsertRatio
from components.replay_shard import ReplayShard
from components.worker_proxy import WorkerProxy
from messages import (
    BatchTrainingDataMsg,
    DrawEpisodesMsg,
    InsertTransitionMsg,
    JoinMsg,
    LoadParamsMsg,
    SampleBatchMsg,
    SaveCheckpointMsg,
    ShardEpisodesMsg,
    ShardSizeMsg,
    UpdatePriorityMsg,
    WorkerCountMsg,
)
from orchestra import Flags, Hosts, HostShape, Topology, UsageError, build, load_experiment
from orchestra.actors.cell import ActorFailed

EXPERIMENT = Path(__file__).resolve().parents[2] / "experiments" / "qmix_8m.py"
SPEC = EnvSpec("corridor", n_agents=2, n_actions=3, obs_size=4, state_size=3, episode_limit=6)


def new_buffer(**options: Any) -> PrioritizedEpisodeReplay:
    return PrioritizedEpisodeReplay(SPEC, 64, **{"alpha": 0.0, **options})


def begun(scene, *names: str, **options: Any):
    """The manager, a trainer, and shards by these names."""
    trainer = scene.probe("trainer", BatchTrainingDataMsg)
    union, schema = FederatedReplay(new_buffer().share_fields), new_buffer().schema
    manager = scene.node.spawn("trajectories", FederatedTrajectories, replay=union, schema=schema)
    shards = [scene.node.spawn(name, ReplayShard, replay=new_buffer(**options), to=manager) for name in names]
    return trainer, manager, shards


def sample(trainer, number: int, batch_size: int) -> SampleBatchMsg:
    return SampleBatchMsg(number=number, batch_size=batch_size, trainer=trainer.ref)


def marks(batch: BatchTrainingDataMsg) -> list[float]:
    """What tells the episodes of a batch apart."""
    firsts = np.cumsum(batch.lengths + 1) - (batch.lengths + 1)
    return batch["obs"][firsts, 0, 0].tolist()


def test_a_batch_is_drawn_from_all_shards_by_what_they_hold(run, stage, episodes) -> None:
    async def main() -> None:
        async with stage() as scene:
            trainer, manager, (one, other) = begun(scene, "one", "other")
            for _ in range(10):
                await one.tell(episodes(2, mark=1.0))
            for _ in range(15):
                await other.tell(episodes(4, 5, mark=2.0))
            await scene.settle()
            for number in range(1, 51):
                await manager.tell(sample(trainer, number, 8))
            await trainer.hear(BatchTrainingDataMsg, 50)
            assert [batch.number for batch in trainer.told] == list(range(1, 51))
            drawn = [mark for batch in trainer.told for mark in marks(batch)]
            assert 250 < drawn.count(2.0) < 350, "three of four episodes lie there, of 400"
            for batch in trainer.told:
                lengths = np.where(np.array(marks(batch)) == 1.0, 2, batch.lengths)
                assert (batch.lengths == lengths).all()
                assert set(batch.lengths.tolist()) <= {2, 4, 5}
                assert batch.weights.tolist() == [1.0] * 8
                wanted = np.repeat(marks(batch), batch.lengths + 1)
                assert (batch["obs"] == wanted[:, None, None]).all()

    run(main())


def test_a_batch_waits_for_experience(run, stage, episodes) -> None:
    async def main() -> None:
        async with stage() as scene:
            trainer, manager, (one,) = begun(scene, "one")
            await manager.tell(sample(trainer, 1, 4))
            await scene.settle()
            assert trainer.told == []
            await one.tell(episodes(3, mark=5.0))
            assert marks(await trainer.hear(BatchTrainingDataMsg)) == [5.0] * 4

    run(main())


def test_batches_go_on_without_a_lost_shard_and_with_a_new_one(run, stage, episodes) -> None:
    async def main() -> None:
        async with stage() as scene:
            trainer, manager, (one, other) = begun(scene, "one", "other")
            await one.tell(episodes(2, 2, mark=1.0))
            await other.tell(episodes(2, 2, mark=2.0))
            await scene.settle()
            await manager.tell(sample(trainer, 1, 32))
            assert set(marks(await trainer.hear(BatchTrainingDataMsg))) == {1.0, 2.0}
            await scene.stop(other)
            await scene.settle()
            for number in range(2, 6):
                await manager.tell(sample(trainer, number, 8))
            await trainer.hear(BatchTrainingDataMsg, 5)
            assert {mark for batch in trainer.told[1:] for mark in marks(batch)} == {1.0}
            again = scene.node.spawn("again", ReplayShard, replay=new_buffer(), to=manager)
            for _ in range(20):
                await again.tell(episodes(2, mark=3.0))
            await scene.settle()
            await manager.tell(sample(trainer, 6, 32))
            assert set(marks(await trainer.hear(BatchTrainingDataMsg, 6))) == {1.0, 3.0}

    run(main())


def test_a_batch_that_was_asked_of_a_shard_that_is_lost_comes_from_the_others(run, stage, episodes) -> None:
    async def main() -> None:
        async with stage() as scene:
            trainer, manager, (one,) = begun(scene, "one")
            silent = scene.probe("silent", DrawEpisodesMsg)
            await manager.tell(ShardSizeMsg(shard=silent.ref, total=1e9, held=9, inserted=9))
            await one.tell(episodes(2, mark=1.0))
            await manager.tell(sample(trainer, 1, 8))
            await scene.settle()
            assert [msg.episodes for msg in silent.told] == [8]
            assert trainer.told == []
            await scene.kill(silent)
            assert marks(await trainer.hear(BatchTrainingDataMsg)) == [1.0] * 8

    run(main())


def test_a_batch_for_which_no_host_has_experience_ends_the_run(run, stage, episodes) -> None:
    async def main() -> None:
        async with stage() as scene:
            trainer, manager, (one,) = begun(scene, "one")
            await one.tell(episodes(2))
            await scene.settle()
            await scene.stop(one)
            await scene.settle()
            await manager.tell(sample(trainer, 1, 2))
            await scene.settle()
            scene.clock.advance(EMPTY_S - 1)
            await scene.settle()
            terminated = scene.node.cell(manager.address).terminated
            assert not terminated.done()
            scene.clock.advance(2)
            await scene.settle()
            assert terminated.done()

    with pytest.raises(ExceptionGroup) as failed:
        run(main())
    (error,) = failed.value.exceptions
    assert isinstance(error, ActorFailed)
    assert "no host has held any experience for 60 s" in str(error.__cause__)


def test_priorities_go_to_the_shards_of_their_episodes(run, stage, episodes) -> None:
    async def main() -> None:
        async with stage() as scene:
            trainer, manager, (one, other) = begun(scene, "one", "other", alpha=1.0, epsilon=0.0)
            await one.tell(episodes(2, 2, mark=1.0))
            await other.tell(episodes(2, 2, mark=2.0))
            await scene.settle()
            await manager.tell(sample(trainer, 1, 64))
            batch = await trainer.hear(BatchTrainingDataMsg)
            priorities = np.where(np.array(marks(batch)) == 1.0, 0.0, 1.0).astype(np.float32)
            await manager.tell(
                UpdatePriorityMsg(indices=batch.indices, generations=batch.generations, priorities=priorities)
            )
            await scene.settle()
            await manager.tell(sample(trainer, 2, 64))
            # Items that were drawn before they had a priority of 0 are not drawn again.
            assert set(marks(await trainer.hear(BatchTrainingDataMsg, 2))) == {2.0}

    run(main())


def test_a_checkpoint_has_all_shards_and_a_resumed_run_goes_on_with_them(run, stage, episodes, tmp_path: Path) -> None:
    saved: list[Path] = []

    async def first() -> None:
        async with stage(run_directory=tmp_path) as scene:
            _, manager, (one, other) = begun(scene, "one", "other")
            await one.tell(episodes(2, mark=1.0))
            await other.tell(episodes(2, mark=2.0))
            await scene.settle()
            saved.append(Path(await manager.ask(SaveCheckpointMsg(env_steps=4))))

    async def second() -> None:
        async with stage(resume_from=saved[0]) as scene:
            trainer, manager, _ = begun(scene, "one", "other", "new")
            await scene.settle()  # they have loaded what they held
            await manager.tell(sample(trainer, 1, 64))
            assert set(marks(await trainer.hear(BatchTrainingDataMsg))) == {1.0, 2.0}

    run(first())
    run(second())


def test_a_proxy_with_a_shard_keeps_the_experience_and_passes_its_counts_on(run, stage, episodes) -> None:
    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", JoinMsg, InsertTransitionMsg, WorkerCountMsg)
            shard = scene.probe("shard", InsertTransitionMsg)
            proxy = scene.node.spawn("proxy", WorkerProxy, to=up.ref, shard=shard.ref)
            whole = episodes(2, 5, reward=0.5, won=True, version=3, sender="worker-0-0/worker")
            await proxy.tell(whole)
            await scene.settle()
            (kept,), (passed,) = shard.told, up.of(InsertTransitionMsg)
            assert (kept["obs"] == whole["obs"]).all()
            assert passed.sender == proxy.address
            assert set(passed.fields) == {"reward", "epsilon"}
            counted = []
            for msg in (whole, passed):
                counters = RunCounters(SampleToInsertRatio(1.0, min_size=1, error_buffer=4.0), 100, 100)
                counters.count(msg, LoadParamsMsg(version=5, params=np.zeros(1, np.float32), env_steps=0))
                counted.append(counters.progress(None, 100, 1))
            assert counted[0] == counted[1]

    run(main())


def test_a_shard_that_holds_nothing_sends_nothing(run, stage) -> None:
    async def main() -> None:
        async with stage() as scene:
            manager = scene.probe("manager", ShardSizeMsg, ShardEpisodesMsg)
            shard = scene.node.spawn("shard", ReplayShard, replay=new_buffer(), to=manager.ref)
            await shard.tell(DrawEpisodesMsg(episodes=3))
            answer = await manager.hear(ShardEpisodesMsg)
            assert (answer.episodes, len(answer.indices), answer.size.held) == (None, 0, 0)

    run(main())


def planned(*flags: str) -> Topology:
    """The plan of `qmix_8m` over a head and two hosts."""
    function = load_experiment(EXPERIMENT)
    hosts = Hosts([HostShape(0, "head", 2, plays=False), HostShape(1, "one", 2), HostShape(2, "two", 2)])
    return build(function, Flags.of(function).parse(["--scenario", "3m", "--federated", *flags]), hosts)


def test_an_experiment_has_a_shard_beside_the_proxy_of_each_host() -> None:
    nodes = planned("--buffer-size", "100").nodes
    assert {name: [actor.name for actor in node.actors] for name, node in nodes.items() if name.startswith("host")} == {
        "host-1": ["shard", "proxy"],
        "host-2": ["shard", "proxy"],
    }
    (shard, _) = nodes["host-2"].actors
    assert shard.factory.keywords["replay"].capacity == 50
    assert next(a.kind for a in nodes["learner"].actors if a.name == "trajectories") is FederatedTrajectories


@pytest.mark.parametrize("flags", [("--algorithm", "coma"), ("--no-proxy",), ("--drop-stale", "3")], ids=" ".join)
def test_a_federated_run_of_what_shards_cannot_do_is_refused(flags: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="--federated needs proxies, and works neither with COMA nor"):
        planned(*flags)
