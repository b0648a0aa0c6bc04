"""A trajectory manager keeps what it is told, and sends a batch to whom a sample names."""

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from components.envs.base import EnvSpec
from components.policies.base import EpisodeBatch
from components.replay_buffers import EpisodeReplay, PrioritizedEpisodeReplay
from components.replay_buffers.episodes import Sampled
from components.trajectory_manager import TrajectoryManager
from messages import BatchTrainingDataMsg, NotSavedMsg, SampleBatchMsg, SaveCheckpointMsg, UpdatePriorityMsg
from orchestra import SparseArray
from orchestra.actors.arrays import is_frozen
from orchestra.actors.cell import ActorFailed

SPEC = EnvSpec("corridor", n_agents=2, n_actions=3, obs_size=4, state_size=3, episode_limit=6)


def sample(trainer, number: int, batch_size: int) -> SampleBatchMsg:
    return SampleBatchMsg(number=number, batch_size=batch_size, trainer=trainer.ref)


def test_a_batch_goes_to_the_trainer_that_the_sample_names(run, stage, episodes) -> None:
    async def main() -> None:
        async with stage() as scene:
            one, other = (scene.probe(name, BatchTrainingDataMsg) for name in ("one", "other"))
            manager = scene.node.spawn("trajectories", TrajectoryManager, replay=EpisodeReplay(SPEC, 10))
            await manager.tell(episodes(2, 5, mark=3.0, reward=0.5))
            await manager.tell(sample(one, 7, 2))
            await manager.tell(sample(other, 8, 1))
            batch = await one.hear(BatchTrainingDataMsg)
            assert (batch.number, batch["epsilon"].tolist()) == (7, [0.5, 0.5])
            assert sorted(batch.lengths.tolist()) == [2, 5]
            assert batch["obs"].shape == (9, 2, 4)
            assert batch.weights.tolist() == [1.0, 1.0]
            assert (batch["reward"] == 0.5).all()
            assert (batch["obs"] == 3.0).all()
            batch = await other.hear(BatchTrainingDataMsg)
            assert (batch.number, len(batch.lengths)) == (8, 1)

    run(main())


def test_a_batch_stays_as_it_was_sent_though_its_episodes_are_overwritten(run, stage, episodes) -> None:
    async def main() -> None:
        async with stage() as scene:
            trainer = scene.probe("trainer", BatchTrainingDataMsg)
            replay = EpisodeReplay(SPEC, 1)
            manager = scene.node.spawn("trajectories", TrajectoryManager, replay=replay)
            for mark in range(4):
                await manager.tell(episodes(4, mark=float(mark)))
                await manager.tell(sample(trainer, mark, 1))
            await trainer.hear(BatchTrainingDataMsg, 4)
            for mark, batch in enumerate(trainer.told):
                assert (batch["obs"] == mark).all()
                assert all(is_frozen(getattr(batch, name)) for name in batch.wire.array_fields)

    run(main())


def test_a_batch_is_sent_in_the_memory_in_which_it_was_gathered(run, stage, episodes) -> None:
    gathered: list[EpisodeBatch] = []

    class Noting(EpisodeReplay):
        def sample(self, batch_size: int, rng: np.random.Generator, *, sparse: bool = False) -> Sampled:
            sampled = super().sample(batch_size, rng, sparse=sparse)
            gathered.append(sampled.batch)
            return sampled

    async def main() -> None:
        async with stage() as scene:
            trainer = scene.probe("trainer", BatchTrainingDataMsg)
            manager = scene.node.spawn("trajectories", TrajectoryManager, replay=Noting(SPEC, 4))
            await manager.tell(episodes(4, 2))
            await manager.tell(sample(trainer, 1, 2))
            batch = await trainer.hear(BatchTrainingDataMsg)
            sparse = batch.per_frame.plain()["obs"]
            assert isinstance(sparse, SparseArray), "it travels as differences"
            assert sparse.array is not None, "the array was made before the Trainer gets it"
            for group, rows in ((batch.per_frame, gathered[0].frames), (batch.per_step, gathered[0].steps)):
                for name, array in group.items():
                    assert np.shares_memory(array, rows(name)), name

    run(main())


def test_an_episode_keeps_the_exploration_rate_with_which_it_was_played(run, stage, episodes) -> None:
    async def main() -> None:
        async with stage() as scene:
            trainer = scene.probe("trainer", BatchTrainingDataMsg)
            manager = scene.node.spawn("trajectories", TrajectoryManager, replay=EpisodeReplay(SPEC, 4))
            for length in (1, 2, 3, 4, 5):  # the first is overwritten
                await manager.tell(episodes(length, epsilon=length / 8))
            await manager.tell(sample(trainer, 1, 4))
            batch = await trainer.hear(BatchTrainingDataMsg)
            assert sorted(batch.lengths.tolist()) == [2, 3, 4, 5]
            assert (batch["epsilon"] == batch.lengths / 8).all()

    run(main())


def test_priorities_decide_what_is_sampled_next(run, stage, episodes) -> None:
    async def main() -> None:
        async with stage() as scene:
            trainer = scene.probe("trainer", BatchTrainingDataMsg)
            replay = PrioritizedEpisodeReplay(SPEC, 16)
            manager = scene.node.spawn("trajectories", TrajectoryManager, replay=replay)
            for mark in range(16):
                await manager.tell(episodes(1, mark=float(mark)))
            await manager.tell(sample(trainer, 1, 16))
            batch = await trainer.hear(BatchTrainingDataMsg)
            wanted = batch.indices == 5
            update = UpdatePriorityMsg(
                indices=batch.indices,
                generations=batch.generations,
                priorities=np.where(wanted, 1e6, 1e-6).astype(np.float32),
            )
            await manager.tell(update)
            for number in range(20):
                await manager.tell(sample(trainer, number, 1))
            await trainer.hear(BatchTrainingDataMsg, 21)
            drawn = [message.indices[0] for message in trainer.told[1:]]
            assert drawn.count(5) >= 15

    run(main())


def test_two_runs_of_one_seed_draw_the_same_batches(run, stage, episodes) -> None:
    async def drawn(seed: int) -> list[list[int]]:
        async with stage(seed=seed) as scene:
            trainer = scene.probe("trainer", BatchTrainingDataMsg)
            manager = scene.node.spawn("trajectories", TrajectoryManager, replay=EpisodeReplay(SPEC, 64))
            await manager.tell(episodes(*[1] * 64))
            for number in range(5):
                await manager.tell(sample(trainer, number, 8))
            await trainer.hear(BatchTrainingDataMsg, 5)
            return [message.indices.tolist() for message in trainer.told]

    async def main() -> None:
        assert await drawn(1) == await drawn(1) != await drawn(2)

    run(main())


def test_a_batch_that_cannot_be_drawn_fails_the_run_instead_of_never_coming(run, stage, episodes) -> None:
    async def main() -> None:
        async with stage() as scene:
            trainer = scene.probe("trainer", BatchTrainingDataMsg)
            manager = scene.node.spawn("trajectories", TrajectoryManager, replay=EpisodeReplay(SPEC, 4))
            await manager.tell(episodes(1, 1, 1, 1, 1))
            await manager.tell(sample(trainer, 1, 5))
            await trainer.hear(BatchTrainingDataMsg)

    with pytest.RaisesGroup(pytest.RaisesExc(ActorFailed, match="trajectories.* failed; .*SampleBatchMsg")):
        run(main())


def test_on_a_full_disk_it_answers_so_and_its_next_checkpoint_succeeds(
    run, stage, episodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def main() -> None:
        async with stage(run_directory=tmp_path) as scene:
            manager = scene.node.spawn("trajectories", TrajectoryManager, replay=EpisodeReplay(SPEC, 10))
            await manager.tell(episodes(2, 5))
            with monkeypatch.context() as filled:
                filled.setattr(os, "fsync", full)
                answer = await manager.ask(SaveCheckpointMsg(env_steps=1))
            assert answer == NotSavedMsg(error="No space left on device")
            saved.append(await manager.ask(SaveCheckpointMsg(env_steps=2)))

    saved: list[str] = []
    run(main())
    names = sorted(path.name.partition("-")[0] for path in Path(saved[0]).iterdir())
    parts = [f"here.trajectories.replay.00000{n}" for n in range(2)]
    assert names == sorted(["here.trajectories.npz", *parts, "here.trajectories.replay.npz"])
