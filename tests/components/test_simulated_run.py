"""The five actors under many schedules: nothing is lost, counted twice or stuck, and parameters never go backwards.

The actors, nodes and links are the real ones. The environment counts its episodes and names them in its observations,
the policy counts its updates, and the replay buffer writes down what it is given.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from components import LinearSchedule, Orchestrator, Trainer, TrajectoryManager, Worker, WorkerProxy
from components.envs.base import Env, EnvSpec
from components.policies.base import EpisodeBatch, Policy, TrainStepResult
from components.replay_buffers import EpisodeReplay, PrioritizedEpisodeReplay, SampleToInsertRatio
from messages import (
    BatchTrainingDataMsg,
    EvaluationResultMsg,
    InsertTransitionMsg,
    LoadParamsMsg,
    ProgressMsg,
    SampleBatchMsg,
    SaveCheckpointMsg,
    SetCollectingMsg,
)
from orchestra import Actor, InterruptMsg, Lane, Node, Ref, freeze, on
from orchestra.actors.restarts import STOPPED
from orchestra.testing import Process, Scenario, Simulation, SimulationStuck, each_seed, failing_seed, run_seed

SPEC = EnvSpec("tally", n_agents=1, n_actions=2, obs_size=3, state_size=1, episode_limit=4)
HALF_AN_HOUR_S = 1800.0
Episode = tuple[int, int, int]
"""Which environment, which copy of it, which episode of that."""


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # trainers write real checkpoints, below a run directory called nowhere


class Account:
    """What happened in a run, seen from outside."""

    def __init__(self) -> None:
        self.played: defaultdict[int, list[Episode]] = defaultdict(list)
        """By environment, the episodes that ended, in this order."""
        self.inserted: list[Episode] = []
        """Those that the replay buffer was given."""
        self.loaded: list[list[float]] = []
        """By policy, the parameters that it was given, in this order."""
        self.progress: list[ProgressMsg] = []
        self.environments = 0

    def inserted_by(self, environment: int) -> list[Episode]:
        return [episode for episode in self.inserted if episode[0] == environment]

    def check(self, *, gaps: bool = False, goal: bool = True, state: str = "done") -> None:
        """Nothing twice; per environment all in order; and, unless there may be `gaps`, nothing missing in between.

        The run has done what it was to do, unless it was not to reach its `goal`.
        """
        assert len(set(self.inserted)) == len(self.inserted)
        for environment, played in self.played.items():
            inserted = self.inserted_by(environment)
            if gaps:
                assert inserted == [episode for episode in played if episode in set(inserted)]
            else:
                assert inserted == played[: len(inserted)]
        for loads in self.loaded:
            assert loads == sorted(loads)
        last = self.progress[-1]
        assert last.state == state or (last.state == "failed" and not goal)
        assert last.episodes == len(self.inserted)
        if goal:
            assert last.env_steps >= last.goal_steps
            assert last.updates > 0


class RunCounters(Env):
    """Episodes of one to four steps, each of which says whose it is."""

    spec = SPEC

    def __init__(self, n_envs: int, *, seed: int, account: Account) -> None:
        self.n_envs = n_envs
        self._account = account
        account.environments += 1
        self._number = account.environments
        self._rng = np.random.default_rng(seed)
        self._episode = np.full(n_envs, -1)
        self._left = np.zeros(n_envs, np.int64)
        self.obs = np.zeros((n_envs, 1, 3), np.float32)
        self.state = np.zeros((n_envs, 1), np.float32)
        self.available = np.ones((n_envs, 1, 2), np.bool_)
        self.reward = np.ones(n_envs, np.float32)
        self.terminated = np.zeros(n_envs, np.bool_)
        self.truncated = np.zeros(n_envs, np.bool_)
        self.won = np.zeros(n_envs, np.bool_)

    def reset(self, which: np.ndarray | None = None) -> None:
        which = np.ones(self.n_envs, np.bool_) if which is None else which
        self._episode[which] += 1
        self._left[which] = self._rng.integers(1, SPEC.episode_limit + 1, which.sum())
        self.terminated[which] = False
        self._look()

    def step(self, actions: np.ndarray) -> None:
        self._left -= 1
        self.terminated[:] = self._left == 0
        for copy in np.flatnonzero(self.terminated):
            self._account.played[self._number].append((self._number, int(copy), int(self._episode[copy])))

    def _look(self) -> None:
        self.obs[:, 0, 0] = self._number
        self.obs[:, 0, 1] = np.arange(self.n_envs)
        self.obs[:, 0, 2] = self._episode


class Counter(Policy):
    """Its one parameter is how often it has learned."""

    def __init__(self, spec: EnvSpec, *, seed: int, account: Account) -> None:
        self.updates = 0.0
        self._loads: list[float] = []
        account.loaded.append(self._loads)

    def initial_hidden(self, n_envs: int) -> np.ndarray:
        return np.zeros((n_envs, 1, 1), np.float32)

    def act(self, obs: Any, available: Any, last_actions: Any, hidden: Any, *, epsilon: float, rng: Any) -> Any:
        return np.zeros(obs.shape[:2], np.int64), hidden

    def learn(self, batch: EpisodeBatch) -> TrainStepResult:
        self.updates += 1.0
        return TrainStepResult({"loss": self.updates}, np.ones(len(batch.lengths), np.float32))

    def params(self) -> np.ndarray:
        return freeze(np.array([self.updates], np.float32))

    def load(self, params: np.ndarray) -> None:
        self._loads.append(float(params[0]))

    def state_dict(self) -> dict[str, Any]:
        return {"updates": torch.tensor(self.updates)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.updates = float(state["updates"])


def recording(kind: type[Any], account: Account) -> Any:
    """An empty replay buffer of a kind that writes down what it is given."""

    class Recording(kind):
        def insert(self, episodes: Any, priorities: Any = None) -> None:
            super().insert(episodes, priorities)
            starts = np.cumsum(episodes.lengths + 1) - (episodes.lengths + 1)
            account.inserted += [(int(a), int(b), int(c)) for a, b, c in episodes.obs[starts, 0]]

    return Recording(SPEC, 16)


class Listener(Actor[ProgressMsg | EvaluationResultMsg | SaveCheckpointMsg]):
    """In the Monitor's place."""

    def __init__(self, account: Account) -> None:
        self._account = account

    @on(ProgressMsg)
    def progress(self, msg: ProgressMsg) -> None:
        self._account.progress.append(msg)

    @on(EvaluationResultMsg)
    def evaluated(self, msg: EvaluationResultMsg) -> None: ...

    @on(SaveCheckpointMsg)
    def save(self, msg: SaveCheckpointMsg) -> str:
        return "nowhere"


class Plan:
    """A run of the five actors whose every free choice is the seed's."""

    def __init__(
        self,
        sim: Simulation,
        *,
        workers_die: bool = False,
        proxy_dies: bool = False,
        goal: int | None = None,
        manager: Any = TrajectoryManager,
        gatherer: Any = WorkerProxy,
    ) -> None:
        random = sim.random
        self.sim = sim
        self.account = Account()
        self.env = partial(RunCounters, account=self.account)
        self.policy = partial(Counter, account=self.account)
        self.prioritized = random.chance(0.3)
        self.n_envs = 1 + random.below(3)
        self.goal = 12 + random.below(24) if goal is None else goal
        self.publish_interval = 1 + random.below(3)
        self.manager, self.gatherer = manager, gatherer
        self.learner = sim.node("learner", self._learner, run_directory=Path("nowhere"))
        upstream = "learner/orchestrator"
        self.proxy: Process | None = None
        if random.chance(0.7):
            self.proxy = sim.node("host", partial(self._proxy, Ref(upstream)), auto_restart=proxy_dies)
            upstream = "host/proxy"
        self.workers = [
            sim.node(f"worker-{number}", partial(self._worker, Ref(upstream)), auto_restart=workers_die or proxy_dies)
            for number in range(1 + random.below(3))
        ]

    async def end(self) -> None:
        """Wait until the Orchestrator has stopped, and then the learner."""
        assert await self.orchestrator == STOPPED
        await self.learner.stop()

    def interrupt(self) -> None:
        """Ask the Orchestrator to stop, as Ctrl-C does."""
        if not self.orchestrator.done():
            self.learner.node.cell("learner/orchestrator").request_stop()

    def small(self, kind: type[Any]) -> Any:
        """The same actor, with a mailbox that may be as small as one message."""
        capacity = self.sim.random.choice((1, 1, 2, 3, 4096))
        return type(kind.__name__, (kind,), {"mailbox_capacity": capacity})

    def _learner(self, node: Node) -> None:
        random = self.sim.random
        monitor = node.spawn("monitor", self.small(Listener), self.account)
        kind = PrioritizedEpisodeReplay if self.prioritized else EpisodeReplay
        manager = node.spawn("trajectories", self.small(self.manager), replay=recording(kind, self.account))
        ratio = random.choice((0.25, 0.5, 1.0, 2.0))
        orchestrator = node.spawn(
            "orchestrator",
            self.small(Orchestrator),
            trajectories=manager,
            monitor=monitor,
            limiter=SampleToInsertRatio(ratio, min_size=3, error_buffer=max(2.0 * ratio, random.choice((2.0, 8.0)))),
            batch_size=2,
            goal_steps=self.goal,
            batches_in_flight=1 + random.below(3),
            eval_interval=10,
            eval_episodes=2,
            final_eval_episodes=3,
            checkpoint_interval=random.choice((3, 10)),
        )
        node.spawn(
            "trainer",
            self.small(Trainer),
            spec=SPEC,
            policy=self.policy,
            to=orchestrator,
            priorities_to=manager if self.prioritized else None,
            publish_interval=self.publish_interval,
        )
        self.orchestrator = node.cell(orchestrator.address).terminated

    def _proxy(self, to: Ref[Any], node: Node) -> None:
        node.spawn("proxy", self.small(self.gatherer), to=to)

    def _worker(self, to: Ref[Any], node: Node) -> None:
        node.spawn(
            "worker",
            self.small(Worker),
            env=self.env,
            policy=self.policy,
            to=to,
            n_envs=self.n_envs,
            exploration=LinearSchedule(1.0, 0.0, over=100),
            steps_per_turn=1 + self.sim.random.below(3),
        )


async def undisturbed(sim: Simulation) -> None:
    plan = Plan(sim)
    await sim.start()
    await plan.end()
    plan.account.check()


async def interrupted(sim: Simulation) -> None:
    plan = Plan(sim, workers_die=True, proxy_dies=True)
    await sim.start()
    async with sim.faults(cuts=3.0, pauses=0.3):
        await asyncio.sleep(sim.random.exponential(0.3))
        plan.interrupt()
        await plan.end()
    plan.account.check(goal=False)


async def disturbed(sim: Simulation) -> None:
    plan = Plan(sim, workers_die=True, proxy_dies=True)
    await sim.start()
    async with sim.faults(cuts=sim.random.choice((3.0, 15.0)), partitions=0.3, pauses=0.3):
        await plan.end()
    # Who is held up for long enough is taken for dead; then what it told in between is lost.
    plan.account.check(gaps=any("peer gone" in line and "goodbye" not in line for line in sim.log))


async def deadly_for_workers(sim: Simulation) -> None:
    plan = Plan(sim, workers_die=True)
    await sim.start()
    async with sim.faults(kills=3.0, cuts=1.0, pauses=0.3):
        await asyncio.sleep(sim.random.exponential(1.0))
    await plan.end()
    plan.account.check()


async def deadly_for_all_but_the_learner(sim: Simulation) -> None:
    plan = Plan(sim, workers_die=True, proxy_dies=True)
    await sim.start()
    async with sim.faults(kills=3.0, cuts=1.0, pauses=0.3):
        await asyncio.sleep(sim.random.exponential(1.0))
    await plan.end()
    plan.account.check(gaps=True)


async def learner_dies(sim: Simulation) -> None:
    plan = Plan(sim)
    await sim.start()
    await asyncio.wait({plan.orchestrator}, timeout=sim.random.exponential(0.3))
    plan.learner.kill()
    await sim.until(lambda: not any(process.running for process in sim.processes.values()), within=5.0)


async def chaotic(sim: Simulation) -> None:
    """Half an hour of faults; then the run reaches its goal, is interrupted, or loses its learner."""
    plan = Plan(sim, workers_die=True, proxy_dies=True, goal=1_000_000)
    await sim.start()
    async with sim.faults(kills=1 / 30, cuts=1 / 20, partitions=1 / 120, pauses=1 / 60):
        await asyncio.wait({plan.orchestrator}, timeout=HALF_AN_HOUR_S)
        assert not plan.orchestrator.done()
    end = sim.random.choice(("done", "interrupted", "lost"))
    if end == "lost":
        for process in sim.processes.values():
            process.auto_restart = False
        plan.learner.kill()
        await sim.until(lambda: not any(process.running for process in sim.processes.values()), within=30.0)
        return
    orchestrator = plan.learner.node.cell("learner/orchestrator")
    if end == "done":
        orchestrator.actor.goal_steps = plan.account.progress[-1].env_steps  # type: ignore[union-attr]  # it is up
    else:
        await plan.learner.ref(orchestrator.address).tell(InterruptMsg())
    await plan.end()
    plan.account.check(gaps=True, goal=False, state=end)
    assert plan.account.progress[-1].updates > 0


@pytest.fixture(autouse=True)
def _no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("components.trainer.save_checkpoint", lambda *_: None)
    monkeypatch.setattr("components.run_evaluations.save_params", lambda *_: None)
    monkeypatch.setattr("components.checkpoints.array_file.Checkpointed.save", lambda *_, **__: None)
    for name in ("begin", "rename", "write", "commit"):
        monkeypatch.setattr(f"components.checkpoints.run_state.{name}", lambda *_, **__: Path("nowhere"))


# What holds -----------------------------------------------------------------------------------------------------------


def test_no_episode_is_lost_or_counted_twice_and_no_mailbox_is_too_small() -> None:
    each_seed(undisturbed, 200, limit=600.0)


def test_a_run_can_be_stopped_at_any_time() -> None:
    each_seed(interrupted, 100, limit=600.0)


def test_neither_does_a_broken_connection_cost_or_double_an_episode() -> None:
    each_seed(disturbed, 100, limit=600.0)


def test_what_a_dead_worker_told_counts_once_and_the_run_ends() -> None:
    each_seed(deadly_for_workers, 150, limit=600.0)


def test_nothing_counts_twice_and_the_run_ends_when_a_proxy_dies_too() -> None:
    each_seed(deadly_for_all_but_the_learner, 150, limit=600.0)


def test_when_the_learner_dies_all_others_end_within_seconds() -> None:
    each_seed(learner_dies, 60, limit=600.0)


@pytest.mark.slow
def test_after_half_an_hour_of_kills_and_broken_links_every_run_ends_in_the_right_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All 200 seeds: `ORCHESTRA_SEEDS=0:200 pytest tests/components/test_simulated_run.py -k half_an_hour`."""
    monkeypatch.setattr("orchestra.simulation.loop.OFFLOADED_S", 5.0)  # slow games: few events in half an hour
    each_seed(chaotic, 10, limit=HALF_AN_HOUR_S + 600.0)


@pytest.mark.parametrize("scenario", [undisturbed, disturbed, deadly_for_all_but_the_learner])
def test_a_seed_does_the_same_again_to_the_last_byte(scenario: Scenario) -> None:
    for seed in range(3):
        assert run_seed(scenario, seed).digest == run_seed(scenario, seed).digest


# Bugs made on purpose are found ---------------------------------------------------------------------------------------


class TwoForOne(TrajectoryManager):
    """Inserts again what it was told last, when a sample is asked for while more waits."""

    last: InsertTransitionMsg

    @on(InsertTransitionMsg)
    def insert(self, msg: InsertTransitionMsg) -> None:
        self.last = msg
        super().insert(msg)

    @on(SampleBatchMsg)
    async def sample(self, msg: SampleBatchMsg) -> None:
        if msg.number % 3 == 0:
            super().insert(self.last)
        await super().sample(msg)


class Forgetful(WorkerProxy):
    """Sends on the newest of what has gathered, where something gathers."""

    async def _send_gathered(self) -> None:
        del self._gathered[:-1]
        await super()._send_gathered()


class Nostalgic(WorkerProxy):
    """Hands out the first parameters it got, together with the pace."""

    first: LoadParamsMsg | None = None

    @on(LoadParamsMsg)
    async def load(self, msg: LoadParamsMsg) -> None:
        self.first = self.first or msg
        await super().load(msg)

    @on(SetCollectingMsg)
    async def set_collecting(self, msg: SetCollectingMsg) -> None:
        await super().set_collecting(msg)
        if self.first is not None:
            for worker in self._workers.refs.values():
                await worker.tell(self.first)


@pytest.mark.parametrize("broken", [TwoForOne, Forgetful, Nostalgic])
def test_an_actor_with_a_bug_is_found(broken: type[Actor[Any]]) -> None:
    async def scenario(sim: Simulation) -> None:
        plan = Plan(sim, **{"manager" if broken is TwoForOne else "gatherer": broken})
        await sim.start()
        await plan.end()
        plan.account.check()

    assert failing_seed(scenario, 60, limit=600.0) is not None


def test_a_circle_of_actors_that_all_wait_for_room_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchTrainingDataMsg, "lane", Lane.ORDERED)  # as it was, before a simulation found this
    with pytest.raises(SimulationStuck, match=r"learner/trajectories in Waiters\.wait"):
        each_seed(undisturbed, 60, limit=10.0)
