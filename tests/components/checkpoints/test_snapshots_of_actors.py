"""What an actor says of its state is all that it holds: another that is told it is the same, attribute by attribute."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from team_experience import team_batch

from components.envs.base import EnvSpec
from components.orchestrator import Orchestrator
from components.policies.base import EpisodeBatch
from components.policies.qmix import Qmix
from components.replay_buffers import SampleToInsertRatio
from components.trainer import Trainer
from components.worker_proxy import WorkerProxy
from messages import (
    BatchTrainingDataMsg,
    ClaimRoleMsg,
    CollectMsg,
    EvaluateMsg,
    EvaluationResultMsg,
    InsertTransitionMsg,
    JoinMsg,
    LoadParamsMsg,
    ProgressMsg,
    SampleBatchMsg,
    SaveCheckpointMsg,
    SaveStateMsg,
    StateSavedMsg,
    TrainResultMsg,
    WorkerCountMsg,
)
from orchestra import Actor, PlayedMsg
from orchestra.actors import codec
from orchestra.actors.actor import making
from orchestra.replay.state import state_differences
from orchestra.trace.recording.capture import frozen_value

DOWN = (LoadParamsMsg, CollectMsg, SaveStateMsg)


def made(cell: Any, factory: partial[Actor[Any]]) -> Any:
    """Return an actor made as that of `cell` was."""
    token = making.set(cell.context)
    try:
        return factory()
    finally:
        making.reset(token)


def another(cell: Any, factory: partial[Actor[Any]]) -> Any:
    """Return an actor made as that of `cell` was, and told its state, as it travels."""
    state = cell.actor.snapshot()
    assert state is not None
    header, arrays = codec.Encoder().encode(frozen_value(dict(state)))
    copy = made(cell, factory)
    copy.restore(codec.decode(header, codec.payload_array(arrays)))
    return copy


def differences(one: Any, other: Any) -> list[str]:
    return [found.path + found.difference.path for found in state_differences(one, other)]


def params(version: int) -> LoadParamsMsg:
    return LoadParamsMsg(version=version, params=np.full(2, version, np.float32), env_steps=7)


def test_an_orchestrator_in_the_middle_of_everything(run, stage, episodes, tmp_path) -> None:
    async def main() -> None:
        async with stage(run_directory=tmp_path) as scene:
            saved = {SaveCheckpointMsg: "a file"}
            trajectories = scene.probe("t", InsertTransitionMsg, SampleBatchMsg, SaveCheckpointMsg, answers=saved)
            monitor = scene.probe("m", ProgressMsg, PlayedMsg, EvaluationResultMsg, SaveCheckpointMsg, answers=saved)
            trainer = scene.probe("trainer", BatchTrainingDataMsg, SaveCheckpointMsg, answers=saved)
            worker, evaluator = scene.probe("worker", *DOWN), scene.probe("evaluator", EvaluateMsg)

            factory = partial(
                Orchestrator, trajectories=trajectories.ref, monitor=monitor.ref, batch_size=2, goal_steps=1000,
                limiter=SampleToInsertRatio(1.0, min_size=2, error_buffer=100.0), eval_interval=5,
                checkpoint_interval=20,
            )  # fmt: skip
            again = partial(factory, limiter=SampleToInsertRatio(1.0, min_size=2, error_buffer=100.0))
            ref = scene.node.spawn("orchestrator", Orchestrator, **factory.keywords)
            for message in (
                ClaimRoleMsg(role="evaluator", ref=evaluator.ref),
                *(
                    ClaimRoleMsg(role="trainer", ref=trainer.ref),
                    JoinMsg(role="worker", ref=worker.ref, environments=1),
                    params(3),
                ),
                *(episodes(2, 3), episodes(4), episodes(5, 4)),
                *(TrainResultMsg(number=1, seconds=0.25, metrics=(("loss", 0.5),)), episodes(6)),
            ):
                await ref.tell(message)
                await scene.settle()
            cell = scene.node.cell(ref.address)
            assert cell.actor._checkpoint.point.active  # a checkpoint, which waits for the worker
            assert cell.actor._checkpoint.point.unsaved
            assert evaluator.of(EvaluateMsg) == cell.actor._evaluations.pending[:1]
            assert differences(cell.actor, another(cell, again)) == []
            fresh = partial(factory, limiter=SampleToInsertRatio(1.0, min_size=2, error_buffer=100.0))
            assert differences(cell.actor, made(cell, fresh)) != []

    run(main())


def test_a_proxy_that_waits_for_its_workers(run, stage) -> None:
    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", JoinMsg, InsertTransitionMsg, WorkerCountMsg, StateSavedMsg)
            worker, other = scene.probe("worker", *DOWN), scene.probe("other", *DOWN)
            factory = partial(WorkerProxy, to=up.ref)
            ref = scene.node.spawn("proxy", WorkerProxy, **factory.keywords)
            for message in (
                *(
                    JoinMsg(role="worker", ref=worker.ref, environments=1),
                    JoinMsg(role="worker", ref=other.ref, environments=1),
                    params(3),
                ),
                CollectMsg(episodes=None, received=0, unit="segments"),
                *(SaveStateMsg(env_steps=9, reply_to=up.ref), StateSavedMsg(ref=worker.ref, error="")),
            ):
                await ref.tell(message)
                await scene.settle()
            cell = scene.node.cell(ref.address)
            assert cell.actor._unsaved == {other.ref.address}
            assert differences(cell.actor, another(cell, factory)) == []
            assert differences(cell.actor, made(cell, factory)) != []

    run(main())


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_a_trainer_that_has_learned(run, stage, optimizer) -> None:
    spec = EnvSpec("corridor", n_agents=2, n_actions=3, obs_size=4, state_size=3, episode_limit=6)

    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", ClaimRoleMsg, LoadParamsMsg, TrainResultMsg, answers={ClaimRoleMsg: ""})
            policy = partial(Qmix, hidden_size=4, optimizer=optimizer, target_update_interval=2)
            factory = partial(Trainer, spec=spec, policy=policy, to=up.ref)
            ref = scene.node.spawn("trainer", Trainer, **factory.keywords)
            for number in range(3):
                await ref.tell(batch(number))
            await scene.settle()
            cell = scene.node.cell(ref.address)
            copy = another(cell, factory)
            assert copy._version == cell.actor._version == 3
            one, other = (each._policy.state_dict() for each in (cell.actor, copy))
            assert differences(one, other) == []
            assert differences(one, made(cell, factory)._policy.state_dict()) != []
            learned = [each._policy.learn(sample()) for each in (cell.actor, copy)]
            assert differences(learned[0].metrics, learned[1].metrics) == []

    run(main())


def sample() -> EpisodeBatch:
    rng = np.random.default_rng(3)
    return EpisodeBatch(
        obs=rng.normal(size=(2, 4, 2, 4)).astype(np.float32),
        state=rng.normal(size=(2, 4, 3)).astype(np.float32),
        available=np.ones((2, 4, 2, 3), np.bool_),
        actions=np.zeros((2, 3, 2), np.int64),
        reward=rng.normal(size=(2, 3)).astype(np.float32),
        lengths=np.full(2, 3, np.int32),
        terminated=np.ones(2, np.bool_),
        weights=np.ones(2, np.float32),
        epsilon=np.full(2, 0.25, np.float32),
    )


def batch(number: int) -> BatchTrainingDataMsg:
    places = np.arange(2)
    return team_batch(number=number, indices=places, generations=places, **sample().arrays())
