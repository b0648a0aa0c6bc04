"""A trainer learns from what it is sent, publishes its parameters at intervals, and can be saved."""

import errno
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from team_experience import team_batch

from components.checkpoints.policy_file import load_checkpoint
from components.envs.base import EnvSpec
from components.trainer import Trainer
from messages import (
    BatchTrainingDataMsg,
    ClaimRoleMsg,
    LoadParamsMsg,
    NotSavedMsg,
    SaveCheckpointMsg,
    TrainResultMsg,
    UpdatePriorityMsg,
)
from orchestra import AskFailed
from orchestra.actors.cell import ActorFailed

SPEC = EnvSpec("corridor", n_agents=2, n_actions=3, obs_size=4, state_size=3, episode_limit=6)
UP = (ClaimRoleMsg, LoadParamsMsg, TrainResultMsg)
ACCEPTED = {ClaimRoleMsg: ""}


def batch(number: int, *, n: int = 2) -> BatchTrainingDataMsg:
    return team_batch(
        number=number,
        obs=np.full((n, 4, 2, 4), number, np.float32),
        state=np.zeros((n, 4, 3), np.float32),
        available=np.ones((n, 4, 2, 3), np.bool_),
        actions=np.zeros((n, 3, 2), np.int64),
        reward=np.zeros((n, 3), np.float32),
        lengths=np.full(n, 3, np.int32),
        terminated=np.ones(n, np.bool_),
        epsilon=np.full(n, 0.25, np.float32),
        weights=np.full(n, 0.5, np.float32),
        indices=np.arange(n) + 10,
        generations=np.arange(n) + 100,
    )


def test_a_trainer_joins_and_publishes_its_first_parameters_at_once(run, stage, scripted) -> None:
    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP, answers=ACCEPTED)
            trainer = scene.node.spawn("trainer", Trainer, spec=SPEC, policy=scripted, to=up.ref)
            await scene.settle()
            join, load = up.told
            assert (load.version, load.env_steps) == (0, None)
            assert load.params.shape == (2,)
            assert join == ClaimRoleMsg(role="trainer", ref=trainer)

    run(main())


def test_it_is_prepared_to_learn_before_it_says_that_it_is_there(run, stage, scripted) -> None:
    """Preparing takes a second, and whoever plays meanwhile would play far ahead."""

    async def main() -> None:
        async with stage() as scene:
            up, heard_by_then = scene.probe("up", *UP, answers=ACCEPTED), []

            def policy(spec: EnvSpec, *, seed: int):
                made = scripted(spec, seed=seed)
                made.prepare = lambda: heard_by_then.append(len(up.told))
                return made

            scene.node.spawn("trainer", Trainer, spec=SPEC, policy=policy, to=up.ref)
            await up.hear(ClaimRoleMsg)
            assert heard_by_then == [0]

    run(main())


def test_it_publishes_after_every_so_many_batches_of_the_run(run, stage, scripted) -> None:
    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP, answers=ACCEPTED)
            trainer = scene.node.spawn("trainer", Trainer, spec=SPEC, policy=scripted, to=up.ref, publish_interval=3)
            first = await up.hear(LoadParamsMsg)
            told = []
            for number in range(5, 13):  # a resumed run counts on
                await trainer.tell(batch(number))
                await scene.settle()
                told.append(len(up.of(LoadParamsMsg)) - 1)
            assert told == [0, 1, 1, 1, 2, 2, 2, 3]
            assert [message.version for message in up.of(LoadParamsMsg)] == [0, 1, 2, 3]
            assert {message.env_steps for message in up.of(LoadParamsMsg)} == {None}  # it does not count them
            # what it published is what it had learned by then, and stays so
            base = first.params[0]
            assert [message.params[0] - base for message in up.of(LoadParamsMsg)] == [0.0, 2.0, 5.0, 8.0]

    run(main())


def test_every_batch_is_reported_by_its_number_with_what_the_algorithm_says(run, stage, scripted) -> None:
    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP, answers=ACCEPTED)
            trainer = scene.node.spawn("trainer", Trainer, spec=SPEC, policy=scripted, to=up.ref)
            for number in (1, 2):
                await trainer.tell(batch(number))
            await up.hear(TrainResultMsg, 2)
            assert up.of(TrainResultMsg) == [
                TrainResultMsg(number=1, seconds=0.0, metrics=(("grad_norm", 1.0), ("loss", 0.5))),
                TrainResultMsg(number=2, seconds=0.0, metrics=(("grad_norm", 1.0), ("loss", 1.0))),
            ]

    run(main())


def test_the_seconds_that_it_reports_are_those_of_learning_alone(run, stage, scripted) -> None:
    async def main() -> None:
        async with stage() as scene:

            class Slow(scripted):
                def learn(self, batch):
                    scene.clock.advance(2.5)
                    return super().learn(batch)

            up = scene.probe("up", *UP)
            trainer = scene.node.spawn("trainer", Trainer, spec=SPEC, policy=Slow, to=up.ref)
            for number in (1, 2):
                scene.clock.advance(100.0)
                await trainer.tell(batch(number))
                assert (await up.hear(TrainResultMsg, number)).seconds == pytest.approx(2.5)

    run(main())


def test_it_learns_from_the_very_batch_that_it_was_sent(run, stage, made_policies) -> None:
    policy, made = made_policies

    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP, answers=ACCEPTED)
            trainer = scene.node.spawn("trainer", Trainer, spec=SPEC, policy=policy, to=up.ref)
            message = batch(3)
            await trainer.tell(message)
            await up.hear(TrainResultMsg)
            (learned,) = made[0].batches
            assert learned.fields.keys() == {"obs", "state", "available", "actions", "reward", "epsilon"}
            for group, rows in ((message.per_frame, learned.frames), (message.per_step, learned.steps)):
                for name, array in group.items():
                    assert np.shares_memory(rows(name), array), name
            np.testing.assert_array_equal(learned["epsilon"], message["epsilon"])
            np.testing.assert_array_equal(learned.versions_of_steps, message.versions)
            for name in ("lengths", "terminated", "truncated", "weights"):
                np.testing.assert_array_equal(getattr(learned, name), getattr(message, name))

    run(main())


@pytest.mark.parametrize("asked", [True, False])
def test_priorities_go_back_only_when_asked_for(run, stage, scripted, asked: bool) -> None:
    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP, answers=ACCEPTED)
            trajectories = scene.probe("trajectories", UpdatePriorityMsg)
            factory = {"spec": SPEC, "policy": scripted, "to": up.ref}
            trainer = scene.node.spawn("trainer", Trainer, **factory, priorities_to=trajectories.ref if asked else None)
            await trainer.tell(batch(1, n=3))
            await up.hear(TrainResultMsg)
            await scene.settle()
            assert len(trajectories.told) == asked
            for message in trajectories.told:
                assert message.indices.tolist() == [10, 11, 12]
                assert message.generations.tolist() == [100, 101, 102]
                assert message.priorities.tolist() == [1.0, 2.0, 3.0]

    run(main())


def test_its_policy_is_drawn_from_the_run_s_seed(run, stage, scripted) -> None:
    async def seed_of(seed: int) -> int:
        made = []

        def policy(spec, *, seed):
            made.append(seed)
            return scripted(spec, seed=seed)

        async with stage(seed=seed) as scene:
            up = scene.probe("up", *UP, answers=ACCEPTED)
            scene.node.spawn("trainer", Trainer, spec=SPEC, policy=policy, to=up.ref)
            await up.hear(ClaimRoleMsg)
        return made[0]

    async def main() -> None:
        assert await seed_of(1) == await seed_of(1) != await seed_of(2)

    run(main())


def test_what_it_saves_can_be_loaded_and_learned_on(run, stage, scripted, tmp_path: Path) -> None:
    async def main() -> None:
        async with stage(run_directory=tmp_path) as scene:
            up = scene.probe("up", *UP, answers=ACCEPTED)
            trainer = scene.node.spawn("trainer", Trainer, spec=SPEC, policy=scripted, to=up.ref, publish_interval=2)
            for number in (1, 2, 3):
                await trainer.tell(batch(number))
            path = await trainer.ask(SaveCheckpointMsg(env_steps=4321))
            assert path == str(tmp_path / "checkpoints" / "steps-0000004321.pt")
            policy = scripted(SPEC, seed=0)
            assert load_checkpoint(Path(path), policy) == {"version": 1, "env_steps": 4321}
            assert policy.updates == 3
            await trainer.tell(batch(4))
            newest = await up.hear(LoadParamsMsg, 3)
            policy.learn(batch(4))  # what the saved one would have learned next
            np.testing.assert_array_equal(policy.params(), newest.params)

    run(main())


def test_on_a_full_disk_it_answers_so_and_its_next_checkpoint_succeeds(
    run, stage, scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def main() -> None:
        async with stage(run_directory=tmp_path) as scene:
            up = scene.probe("up", *UP, answers=ACCEPTED)
            trainer = scene.node.spawn("trainer", Trainer, spec=SPEC, policy=scripted, to=up.ref)
            with monkeypatch.context() as filled:
                filled.setattr(os, "fsync", full)
                answer = await trainer.ask(SaveCheckpointMsg(env_steps=1))
            assert answer == NotSavedMsg(error="No space left on device")
            assert list((tmp_path / "checkpoints").iterdir()) == []
            path = await trainer.ask(SaveCheckpointMsg(env_steps=2))
            assert load_checkpoint(Path(path), scripted(SPEC, seed=0))["env_steps"] == 2

    run(main())


def test_where_a_run_keeps_no_files_there_is_no_checkpoint(run, stage, scripted) -> None:
    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP, answers=ACCEPTED)
            trainer = scene.node.spawn("trainer", Trainer, spec=SPEC, policy=scripted, to=up.ref)
            with pytest.raises(AskFailed, match="this run keeps no files, so there is no place for a checkpoint"):
                await trainer.ask(SaveCheckpointMsg(env_steps=1))

    with pytest.RaisesGroup(ActorFailed):
        run(main())


def test_a_trainer_that_fails_fails_the_run(run, stage, scripted) -> None:
    class Broken(scripted):
        def learn(self, batch):
            raise FloatingPointError("the gradient is not finite")

    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP, answers=ACCEPTED)
            factory = {"spec": SPEC, "policy": partial(Broken), "to": up.ref}
            trainer = scene.node.spawn("trainer", Trainer, **factory)
            await trainer.tell(batch(1))
            await up.hear(TrainResultMsg)

    with pytest.RaisesGroup(pytest.RaisesExc(ActorFailed, match="here/trainer")) as caught:
        run(main())
    assert isinstance(caught.value.exceptions[0].__cause__, FloatingPointError)
