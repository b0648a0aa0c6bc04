"""Whoever shares a process with others computes with its own number of threads."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from team_experience import team_batch

from components.envs.base import EnvSpec
from components.schedule import LinearSchedule
from components.threads import with_threads
from components.trainer import Trainer
from components.worker import Worker
from messages import (
    BatchTrainingDataMsg,
    ClaimRoleMsg,
    CollectMsg,
    InsertTransitionMsg,
    JoinMsg,
    LoadParamsMsg,
    TrainResultMsg,
)

UP = (JoinMsg, ClaimRoleMsg, LoadParamsMsg, TrainResultMsg, InsertTransitionMsg)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_a_call_has_its_number_whatever_was_set_before() -> None:
    for threads in (2, 1, 3, 1):
        assert with_threads(threads, torch.get_num_threads) == threads


def test_the_last_actor_of_a_process_does_not_decide_for_the_others(run, stage, scripted, corridor) -> None:
    seen: dict[str, int] = {}

    class Learns(scripted):
        def learn(self, batch: Any) -> Any:
            seen["trainer"] = torch.get_num_threads()
            return super().learn(batch)

    class Acts(scripted):
        def act(self, *args: Any, **kwargs: Any) -> Any:
            seen["worker"] = torch.get_num_threads()
            return super().act(*args, **kwargs)

    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP, answers={ClaimRoleMsg: ""})
            spec = EnvSpec("corridor", n_agents=2, n_actions=3, obs_size=4, state_size=3, episode_limit=6)
            trainer = scene.node.spawn("trainer", Trainer, spec=spec, policy=Learns, to=up.ref, threads=3)
            worker = scene.node.spawn(
                "worker",
                Worker,
                env=partial(corridor, plan=((2,),)),
                policy=Acts,
                to=up.ref,
                n_envs=1,
                exploration=LinearSchedule(1.0, 0.0, over=100),
                threads=2,
            )
            await worker.tell(LoadParamsMsg(version=0, params=np.zeros(2, np.float32), env_steps=0))
            await worker.tell(CollectMsg(episodes=None, received=0, unit="segments"))
            await up.hear(InsertTransitionMsg)
            await trainer.tell(one_batch())
            await up.hear(TrainResultMsg)
            await worker.tell(CollectMsg(episodes=0, received=0, unit="segments"))
            await up.next(InsertTransitionMsg)

    run(main())
    assert seen == {"trainer": 3, "worker": 2}


def one_batch() -> BatchTrainingDataMsg:
    return team_batch(
        epsilon=np.full(1, 0.1, np.float32),
        number=1,
        obs=np.zeros((1, 4, 2, 4), np.float32),
        state=np.zeros((1, 4, 3), np.float32),
        available=np.ones((1, 4, 2, 3), np.bool_),
        actions=np.zeros((1, 3, 2), np.int64),
        reward=np.zeros((1, 3), np.float32),
        lengths=np.full(1, 3, np.int32),
        terminated=np.ones(1, np.bool_),
        weights=np.ones(1, np.float32),
        indices=np.arange(1),
        generations=np.arange(1),
    )
