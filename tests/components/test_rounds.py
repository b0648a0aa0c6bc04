"""On-policy learning goes in rounds: as many steps of every environment, of one version, then an update."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from team_experience import joined

from components.downstream import Downstream
from components.envs.base import Env, EnvSpec
from components.orchestrator import Orchestrator
from components.replay_buffers import FreshEpisodes
from components.rollout import Rollout, segment_schema
from components.rounds import Rounds
from components.schedule import LinearSchedule
from components.trainer import Trainer
from components.trajectory_manager import TrajectoryManager, batch_message, segments_of
from components.worker import Worker
from components.worker_proxy import WorkerProxy
from messages import (
    ClaimRoleMsg,
    CollectMsg,
    EvaluationResultMsg,
    InsertTransitionMsg,
    JoinMsg,
    LoadParamsMsg,
    ProgressMsg,
    SampleBatchMsg,
    SaveCheckpointMsg,
    SaveStateMsg,
    TrainResultMsg,
)
from orchestra import PlayedMsg

NEVER = 10**9
LENGTH = 10
DOWN = (LoadParamsMsg, CollectMsg, SaveStateMsg)


# The rounds ---------------------------------------------------------------------------------------------------------


def test_a_round_is_complete_with_its_steps_and_the_next_begins_when_it_is_learned() -> None:
    rounds = Rounds(10)
    assert rounds.allowance(3, in_flight=0) == 30
    rounds.insert(steps=29, segments=4)
    assert rounds.end() == 0
    assert rounds.allowance(5, in_flight=0) == 1, "environments that join wait for the next round"
    rounds.insert(steps=1, segments=1)
    assert rounds.end() == 5
    assert rounds.allowance(5, in_flight=1) == 0
    assert rounds.allowance(5, in_flight=0) == 50


def test_with_overlap_one_round_is_played_while_another_is_learned() -> None:
    rounds = Rounds(10, overlap=1)
    for in_flight in (0, 1):
        assert rounds.allowance(1, in_flight) == 10
        rounds.insert(10, 1)
        assert rounds.end() == 1
    assert rounds.allowance(1, in_flight=2) == 0
    assert rounds.allowance(1, in_flight=1) == 10


@settings(suppress_health_check=[HealthCheck.too_slow])  # a busy machine may stand still while it draws
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(1, 9), st.integers(0, 3)), max_size=40), st.integers(0, 1))
def test_a_batch_has_all_segments_of_its_round_and_counts_come_back(moves, overlap) -> None:
    rounds, in_flight, inserted, taken = Rounds(4, overlap=overlap), 0, 0, 0
    for environments, steps, segments in moves:
        left = rounds.allowance(environments, in_flight)
        if not left:
            in_flight = max(in_flight - 1, 0)
            continue
        rounds.insert(min(steps, left), segments)
        inserted += segments
        other = Rounds(4, overlap=overlap)
        other.counts = rounds.counts
        rounds = other
        if rounds.counts[0] == rounds.counts[1]:
            taken += rounds.end()
            in_flight += 1
            assert taken == inserted
        else:
            assert rounds.end() == 0


@pytest.mark.parametrize(("length", "overlap"), [(0, 0), (5, -1)])
def test_numbers_out_of_range_are_refused(length, overlap) -> None:
    with pytest.raises(ValueError, match="length >= 1 and overlap >= 0"):
        Rounds(length, overlap=overlap)


# Steps as credits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("per_turn", [1, 3, 50])
def test_segments_end_with_the_last_credit_and_their_frames_follow_one_another(corridor, scripted, per_turn) -> None:
    env = corridor(3, seed=0)
    rollout = Rollout(env, scripted(env.spec, seed=1), np.random.default_rng(0), segment_length=4)
    for _ in range(5):
        left, parts = 3 * LENGTH, []
        while left > 0:
            if (part := rollout.collect(per_turn, 1.0, left, "steps")) is not None:
                parts.append(part)
                left -= part.steps
        whole = joined(parts)
        assert whole.steps == 3 * LENGTH
        assert whole.lengths.max() <= 4
        copy = whole.per_frame["obs"][:, 0, 0][np.cumsum(whole.lengths + 1) - 1]
        for b in range(3):
            assert whole.lengths[copy == b].sum() == LENGTH, "each copy plays as many"
        t = whole.per_frame["obs"][:, 0, 2]
        firsts = np.cumsum(whole.lengths + 1) - whole.lengths - 1
        np.testing.assert_array_equal(t[firsts], whole.first)
        np.testing.assert_array_equal(t[firsts + whole.lengths], whole.first + whole.lengths)
        assert (~(whole.terminated | whole.truncated)).any(), "segments that end in mid-episode"


class Slow(Env):
    """Copies that answer one at a time, the next in turn; each episode has 5 steps."""

    lock_step = False

    def __init__(self, n_envs: int) -> None:
        self.spec = EnvSpec("slow", n_agents=2, n_actions=3, obs_size=4, state_size=3, episode_limit=5)
        self.n_envs, self._t, self._sent, self._turn = n_envs, np.zeros(n_envs, np.int64), np.zeros(n_envs, np.int64), 0
        self._done = np.zeros(n_envs, np.int64)
        self._allocate()
        self.available[:] = True

    def reset(self, which=None) -> None:
        raise NotImplementedError

    def step(self, actions) -> None:
        raise NotImplementedError

    def send(self, actions, copies) -> None:
        self._sent[copies] = 1
        self._done[copies] = actions[:, 0]

    def send_reset(self, copies) -> None:
        self._sent[copies] = 2

    def recv(self):
        self._turn = next(b % self.n_envs for b in range(self._turn + 1, self._turn + 9) if self._sent[b % self.n_envs])
        b = self._turn
        self._t[b] = self._t[b] + 1 if self._sent[b] == 1 else 0
        self._sent[b] = 0
        self.obs[b, :, 2] = self._t[b]
        self.terminated[b] = self._t[b] == 5
        self.reward[b] = self._t[b] + 10 * self._done[b]
        return np.array([b])


def test_copies_that_make_a_step_are_not_cut_and_their_steps_come_later(scripted) -> None:
    env = Slow(3)
    rollout = Rollout(env, scripted(env.spec, seed=1), np.random.default_rng(0), segment_length=5)
    total = 0
    for _ in range(30):
        part = rollout.collect(4, 1.0, 7, "steps")
        if part is None:
            continue
        total += part.steps
        begins = np.cumsum(part.lengths) - part.lengths
        for begin, length, first in zip(begins, part.lengths, part.first, strict=True):
            steps = slice(begin, begin + length)
            earned = part.per_step["reward"][steps] - 10 * part.per_step["actions"][steps, 0]
            assert earned.tolist() == list(range(first + 1, first + length + 1)), "no step is lost or moved"
    assert total > 100


def test_credits_for_steps_are_shared_by_environments_without_a_limit(run, stage) -> None:
    async def main() -> None:
        async with stage() as scene:
            members = Downstream("steps")
            one, other = (scene.probe(name, CollectMsg) for name in ("one", "other"))
            members.join(one.ref, 1, 2)
            members.join(other.ref, 1, 6)
            await members.grant(800)
            await scene.settle()
            assert one.told == [CollectMsg(episodes=200, received=0, unit="steps")]
            assert other.told == [CollectMsg(episodes=600, received=0, unit="steps")]
            copy = Downstream()
            copy.load(members.state())
            assert (copy.unit, copy.members) == ("steps", members.members)

    run(main())


# A whole run --------------------------------------------------------------------------------------------------------


class Watched:
    """An Orchestrator, a TrajectoryManager, a Trainer and workers on one node."""

    def __init__(self, scene: Any, corridor: Any, scripted: Any, *, workers: int, proxy: bool, **changed: Any) -> None:
        self.scene, self.learners = scene, []
        spec = corridor(1, seed=0).spec

        def learner(spec: EnvSpec, *, seed: int) -> Any:
            self.learners.append(scripted(spec, seed=0))
            return self.learners[-1]

        node = scene.node
        schema = segment_schema(spec, scripted(spec, seed=0).fields, LENGTH)
        monitor = scene.probe(
            "monitor", ProgressMsg, PlayedMsg, EvaluationResultMsg, SaveCheckpointMsg, answers={SaveCheckpointMsg: "x"}
        )
        trajectories = node.spawn("trajectories", TrajectoryManager, replay=FreshEpisodes(schema, 1000))
        self.orchestrator = node.spawn(
            "orchestrator",
            Orchestrator,
            trajectories=trajectories,
            monitor=monitor.ref,
            limiter=Rounds(LENGTH, **changed),
            batch_size=1,
            goal_steps=12 * LENGTH * workers * 2,
            eval_interval=NEVER,
            checkpoint_interval=NEVER,
        )
        node.spawn("trainer", Trainer, spec=spec, policy=learner, to=self.orchestrator)
        up = node.spawn("proxy", WorkerProxy, to=self.orchestrator) if proxy else self.orchestrator
        self.workers = [
            node.spawn(
                f"worker-{number}",
                Worker,
                env=partial(corridor, first=2 * number),
                policy=scripted,
                to=up,
                n_envs=2,
                exploration=LinearSchedule(1.0, 0.0, over=100),
                segment_length=LENGTH,
                steps_per_turn=3,
            )
            for number in range(workers)
        ]


def steps_of(batch: Any) -> tuple[int, set[int]]:
    """Return the steps of a batch, and their versions."""
    real = np.arange(batch.versions.shape[1]) < batch.lengths[:, None]
    return int(batch.lengths.sum()), set(batch.versions[real].tolist())


@pytest.mark.parametrize(("workers", "proxy"), [(1, False), (3, False), (3, True)])
def test_an_update_learns_from_exactly_the_steps_of_a_round_and_of_its_own_version(
    run, stage, corridor, scripted, workers: int, proxy: bool
) -> None:
    async def main() -> None:
        async with stage() as scene:
            watched = Watched(scene, corridor, scripted, workers=workers, proxy=proxy)
            await scene.settle()
            batches = watched.learners[0].batches
            assert len(batches) >= 10
            seen = [steps_of(batch) for batch in batches]
            # Workers that join while the first round is played take part in the next.
            assert [steps for steps, _ in seen[1:]] == [LENGTH * 2 * workers] * (len(batches) - 1)
            assert [versions for _, versions in seen] == [{number} for number in range(len(batches))]

    run(main())


def test_with_overlap_no_step_is_more_than_one_version_behind(run, stage, corridor, scripted) -> None:
    async def main() -> None:
        async with stage() as scene:
            watched = Watched(scene, corridor, scripted, workers=2, proxy=False, overlap=1)
            await scene.settle()
            batches = watched.learners[0].batches
            assert len(batches) >= 10
            lags = [{number - version for version in steps_of(batch)[1]} for number, batch in enumerate(batches)]
            assert set.union(*lags) <= {0, 1}
            assert 1 in set.union(*lags), "rounds overlap"

    run(main())


class Directed:
    """An Orchestrator among probes, whose rounds a test directs."""

    def __init__(self, scene: Any) -> None:
        self.scene = scene
        self.trajectories = scene.probe("trajectories", InsertTransitionMsg, SampleBatchMsg)
        self.monitor = scene.probe("monitor", ProgressMsg, PlayedMsg)
        self.trainer = scene.probe("trainer", SaveCheckpointMsg)
        self.ref = scene.node.spawn(
            "orchestrator",
            Orchestrator,
            trajectories=self.trajectories.ref,
            monitor=self.monitor.ref,
            limiter=Rounds(6),
            batch_size=1,
            goal_steps=NEVER,
            eval_interval=NEVER,
            checkpoint_interval=NEVER,
        )

    async def tell(self, *messages: Any) -> None:
        for message in messages:
            await self.ref.tell(message)
            await self.scene.settle()

    async def join_worker(self, name: str) -> Any:
        worker = self.scene.probe(name, *DOWN)
        await self.tell(JoinMsg(role="worker", ref=worker.ref, environments=1))
        return worker


def params(version: int) -> LoadParamsMsg:
    return LoadParamsMsg(version=version, params=np.full(2, version, np.float32), env_steps=None)


def test_no_worker_plays_before_it_has_been_sent_the_new_version(run, stage, episodes) -> None:
    async def main() -> None:
        async with stage() as scene:
            play = Directed(scene)
            await play.tell(params(0), ClaimRoleMsg(role="trainer", ref=play.trainer.ref))
            worker = await play.join_worker("worker")
            assert [type(each) for each in worker.told] == [LoadParamsMsg, CollectMsg]
            await play.tell(episodes(2, 4, sender=worker.ref.address))
            assert [(each.number, each.batch_size) for each in play.trajectories.of(SampleBatchMsg)] == [(1, 2)]
            assert len(worker.told) == 2, "it has no credit while the learner learns"
            await play.tell(params(1))
            assert len(worker.told) == 3
            await play.tell(TrainResultMsg(number=1, seconds=0.1, metrics=()))
            news = worker.told[2:]
            assert [type(each) for each in news] == [LoadParamsMsg, CollectMsg]
            assert (news[0].version, news[1].episodes, news[1].received) == (1, 6, 6)

    run(main())


def test_the_trainer_publishes_before_it_says_that_it_has_learned(run, stage, corridor, scripted, episodes) -> None:
    async def main() -> None:
        async with stage() as scene:
            spec = corridor(1, seed=0).spec
            up = scene.probe("up", ClaimRoleMsg, LoadParamsMsg, TrainResultMsg, answers={ClaimRoleMsg: ""})
            trainer = scene.node.spawn("trainer", Trainer, spec=spec, policy=scripted, to=up.ref)
            replay = FreshEpisodes(spec, 10)
            replay.insert(segments_of(episodes(2, 3)))
            await trainer.tell(batch_message(1, replay.sample(2, np.random.default_rng(0)), replay.schema))
            await scene.settle()
            told = [(type(each).__name__, getattr(each, "version", None)) for each in up.told[1:]]
            assert told == [("LoadParamsMsg", 0), ("LoadParamsMsg", 1), ("TrainResultMsg", None)]

    run(main())


def test_others_play_the_steps_of_a_worker_that_is_lost(run, stage, episodes) -> None:
    async def main() -> None:
        async with stage() as scene:
            play = Directed(scene)
            await play.tell(params(0), ClaimRoleMsg(role="trainer", ref=play.trainer.ref))
            one, other = [await play.join_worker(name) for name in ("one", "other")]
            await play.tell(episodes(6, sender=one.ref.address), params(1))
            await play.tell(TrainResultMsg(number=1, seconds=0.1, metrics=()))
            assert [each.of(CollectMsg)[-1].episodes for each in (one, other)] == [6, 6]
            await play.tell(episodes(4, sender=one.ref.address))
            await scene.kill(one)
            await scene.settle()
            await play.tell(episodes(6, sender=other.ref.address))
            assert len(play.trajectories.of(SampleBatchMsg)) == 1
            credit = other.of(CollectMsg)[-1]
            assert credit.episodes - (6 - credit.received) == 2
            await play.tell(episodes(2, sender=other.ref.address))
            assert play.trajectories.of(SampleBatchMsg)[-1].batch_size == 3

    run(main())
