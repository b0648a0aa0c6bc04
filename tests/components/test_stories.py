"""The keys of `orchestra trace story`: an episode, a version of the parameters, a batch."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from components.counters import RunCounters
from components.envs.base import EnvSpec
from components.replay_buffers import EpisodeReplay, SampleToInsertRatio
from components.stories import batch, params, transition
from components.trajectory_manager import TrajectoryManager
from components.worker_proxy import WorkerProxy
from messages import (
    BatchTrainingDataMsg,
    InsertTransitionMsg,
    JoinMsg,
    LoadParamsMsg,
    ProgressMsg,
    SampleBatchMsg,
    TrainResultMsg,
    UpdatePriorityMsg,
    WorkerCountMsg,
)
from orchestra import Actor, Node, PlayedMsg, Ref, UsageError, freeze, on
from orchestra.errors import TraceError
from orchestra.testing import ManualClock, settle
from orchestra.trace import DeliveryRow, RunTrace
from orchestra.trace.recording.settings import TraceSettings

SPEC = EnvSpec("corridor", n_agents=2, n_actions=3, obs_size=4, state_size=3, episode_limit=6)


class Teller(Actor[InsertTransitionMsg | LoadParamsMsg]):
    """Stands for a worker: passes on the experience that it receives."""

    def __init__(self, to: Ref[Any]) -> None:
        self.to = to

    @on(InsertTransitionMsg)
    async def tell(self, msg: InsertTransitionMsg) -> None:
        await self.to.tell(msg)

    @on(LoadParamsMsg)
    def load(self, msg: LoadParamsMsg) -> None: ...


class Hub(Actor[JoinMsg | WorkerCountMsg | InsertTransitionMsg | TrainResultMsg]):
    """Stands for the Orchestrator."""

    def __init__(self, trajectories: Ref[Any]) -> None:
        self.trajectories = trajectories

    @on(JoinMsg)
    async def join(self, msg: JoinMsg) -> None:
        await msg.ref.tell(LoadParamsMsg(version=3, params=freeze(np.zeros(2, np.float32)), env_steps=0))

    @on(WorkerCountMsg)
    def members(self, msg: WorkerCountMsg) -> None: ...

    @on(InsertTransitionMsg)
    async def insert(self, msg: InsertTransitionMsg) -> None:
        await self.trajectories.tell(msg)

    @on(TrainResultMsg)
    def trained(self, msg: TrainResultMsg) -> None: ...


class Learner(Actor[BatchTrainingDataMsg]):
    """Stands for the Trainer."""

    def __init__(self, to: Ref[Any], priorities_to: Ref[Any]) -> None:
        self.to, self.priorities_to = to, priorities_to

    @on(BatchTrainingDataMsg)
    async def train(self, msg: BatchTrainingDataMsg) -> None:
        priorities = freeze(np.ones(len(msg.indices), np.float32))
        await self.priorities_to.tell(
            UpdatePriorityMsg(indices=msg.indices, generations=msg.generations, priorities=priorities)
        )
        await self.to.tell(TrainResultMsg(number=msg.number, seconds=0.0, metrics=()))


@pytest.fixture
def trained(tmp_path: Path, episodes: Any) -> Path:
    """Two workers behind a proxy send marked episodes, and two batches are sampled."""

    async def main() -> None:
        clock = ManualClock()
        recorder = TraceSettings("full").recorder("here", tmp_path, clock=clock, seed=0)
        async with Node("here", clock=clock, deterministic=True, recorder=recorder).running() as node:
            replay = node.spawn("replay", TrajectoryManager, replay=EpisodeReplay(SPEC, 10))
            hub = node.spawn("hub", Hub, replay)
            proxy = node.spawn("proxy", WorkerProxy, to=hub)
            one, two = (node.spawn(name, Teller, proxy) for name in ("one", "two"))
            trainer = node.spawn("trainer", Learner, hub, replay)
            await settle(node)
            await one.tell(episodes(1, 2, mark=1.0))
            await two.tell(episodes(3, mark=2.0))
            await settle(node)
            await one.tell(episodes(2, 2, 5, mark=3.0))
            await settle(node)
            for number, size in ((1, 6), (2, 1)):
                await replay.tell(SampleBatchMsg(number=number, batch_size=size, trainer=trainer))
            await settle(node)

    asyncio.run(main())
    return tmp_path


def stops(seen: Iterable[DeliveryRow]) -> list[tuple[str, str]]:
    return [(each.delivery.actor.partition("/")[2], each.delivery.type.name) for each in seen]


@pytest.mark.parametrize(
    ("value", "mark", "length"), [("here/one:2", 1.0, 2), ("here/two:1", 2.0, 3), ("here/one:5", 3.0, 5)]
)
def test_an_episode_is_followed_from_its_worker_into_batches(
    trained: Path, value: str, mark: float, length: int
) -> None:
    with RunTrace(trained) as trace:
        seen = list(transition(trace, value))
        journey = stops(seen)
        assert journey[:3] == [(name, "InsertTransitionMsg") for name in ("proxy", "hub", "replay")]
        assert ("trainer", "BatchTrainingDataMsg") in journey  # the first batch holds all there are
        assert ("replay", "UpdatePriorityMsg") in journey
        drawn = next(each for each in seen if each.delivery.actor == "here/trainer").with_arrays().fields
        came = next(each for each in seen if each.delivery.actor == "here/replay")
        generation = {1.0: {2: 1}, 2.0: {3: 2}, 3.0: {5: 5}}[mark][length]
        (place,) = np.flatnonzero(drawn["generations"] == generation)
        assert drawn["lengths"][place] == length
        begin = (drawn["lengths"][:place] + 1).sum()
        assert (drawn["per_frame"]["obs"][begin : begin + length + 1] == mark).all()
        assert (came.with_arrays().fields["per_frame"]["obs"] == mark).any()


def test_parameters_are_followed_to_the_episodes_played_with_them(trained: Path) -> None:
    with RunTrace(trained) as trace:
        assert stops(params(trace, "3")) == [("proxy", "LoadParamsMsg")]
        acted = list(params(trace, "0"))
        assert {kind for _, kind in stops(acted)} == {"InsertTransitionMsg", "BatchTrainingDataMsg"}


def test_a_batch_is_followed_to_its_training_step(trained: Path) -> None:
    with RunTrace(trained) as trace:
        assert sorted(set(stops(batch(trace, "2")))) == [
            ("hub", "TrainResultMsg"),
            ("replay", "SampleBatchMsg"),
            ("replay", "UpdatePriorityMsg"),
            ("trainer", "BatchTrainingDataMsg"),
        ]


class Screen(Actor[ProgressMsg | PlayedMsg]):
    """Stands for the Monitor."""

    @on(ProgressMsg)
    def progress(self, msg: ProgressMsg) -> None: ...

    @on(PlayedMsg)
    def played(self, msg: PlayedMsg) -> None: ...


@pytest.mark.parametrize("dropped", [0, 1])
def test_the_story_of_an_episode_is_refused_where_episodes_were_dropped(
    tmp_path: Path, episodes: Any, dropped: int
) -> None:
    async def main() -> None:
        recorder = TraceSettings("full").recorder("here", tmp_path, clock=ManualClock(), seed=0)
        async with Node("here", clock=ManualClock(), deterministic=True, recorder=recorder).running() as node:
            replay = node.spawn("replay", TrajectoryManager, replay=EpisodeReplay(SPEC, 10))
            one = node.spawn("one", Teller, replay)
            await one.tell(episodes(2))
            counters = RunCounters(SampleToInsertRatio(1.0, min_size=1, error_buffer=9.0), 10, 10, drop_stale=0)
            newest = LoadParamsMsg(version=dropped, params=np.zeros(1, np.float32), env_steps=0)
            counters.count(episodes(2, version=0), newest)
            await node.spawn("screen", Screen).tell(counters.progress(None, 100, 1))
            await settle(node)

    asyncio.run(main())
    with RunTrace(tmp_path) as trace:
        if dropped:
            with pytest.raises(TraceError, match=r"episodes were dropped \(--drop-stale\), so none can be followed"):
                list(transition(trace, "here/one:1"))
        else:
            assert stops(transition(trace, "here/one:1")) == [("replay", "InsertTransitionMsg")]


def test_missing_things_and_malformed_values_are_refused(trained: Path) -> None:
    with RunTrace(trained) as trace:
        with pytest.raises(TraceError, match="episode 9 of here/two was not recorded; 1 of its episodes were"):
            list(transition(trace, "here/two:9"))
        with pytest.raises(UsageError, match="got 'one'; expected WORKER:K"):
            list(transition(trace, "one"))
        with pytest.raises(UsageError, match="got 'x'; expected a whole number"):
            list(params(trace, "x"))
        with pytest.raises(UsageError, match="got '-1'; expected a whole number"):
            list(batch(trace, "-1"))
