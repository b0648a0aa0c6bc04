"""The actors of a run under many schedules: nothing is lost, counted twice or stuck, and parameters never go backwards.

The actors, nodes and links are the real ones. The environment counts its episodes and names them in its observations,
the policy counts its updates, and the replay buffer writes down what it is given.
"""

import asyncio
import errno
import os
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ParamSpec, TypeVar

import numpy as np
import pytest
import torch

from components import Evaluator, LinearSchedule, Orchestrator, Trainer, TrajectoryManager, Worker, WorkerProxy
from components.checkpoints import run_state
from components.envs.base import Env, EnvSpec
from components.policies.base import EpisodeBatch, Policy, TrainStepResult
from components.replay_buffers import EpisodeReplay, PrioritizedEpisodeReplay, SampleToInsertRatio
from messages import (
    BatchTrainingDataMsg,
    CollectMsg,
    EvaluateMsg,
    EvaluationResultMsg,
    InsertTransitionMsg,
    LoadParamsMsg,
    ProgressMsg,
    SampleBatchMsg,
    SaveCheckpointMsg,
    WorkerCountMsg,
)
from orchestra import Actor, InterruptMsg, Lane, Node, PlayedMsg, Ref, RunDirectory, Topology, freeze, on
from orchestra.actors.addresses import node_of
from orchestra.actors.restarts import STOPPED as IN_ORDER
from orchestra.cli.exit_codes import CANNOT_WRITE, FAILED, FINISHED, INTERRUPTED, STOPPED, of_run
from orchestra.errors import OrchestraError
from orchestra.hosts.keeper import Keeper
from orchestra.hosts.run_plan import RunPlan
from orchestra.runs.api import conclude, failing_in_one_line
from orchestra.runs.processes import ActorsLost, RunProcesses
from orchestra.runs.result import RunFailed, RunResult
from orchestra.runs.runner import Ending, Stopping, run_root, spawn_all
from orchestra.runs.topology import Requirement
from orchestra.simulation.process import ProcessDied
from orchestra.testing import Process, Scenario, Simulation, SimulationStuck, each_seed, failing_seed, run_seed

P = ParamSpec("P")
T = TypeVar("T")
SPEC = EnvSpec("tally", n_agents=1, n_actions=2, obs_size=3, state_size=1, episode_limit=4)
LEARNING_STARTS = 3
HALF_AN_HOUR_S = 1800.0
OUTCOMES = {
    "goal": ("done", FINISHED),
    "workers lost": ("failed", FAILED),
    "full disk": ("failed", CANNOT_WRITE),
    "stopped": ("stopped", STOPPED),
    "interrupted": ("interrupted", INTERRUPTED),
    "aborted": ("interrupted", INTERRUPTED),
    "learner lost": ("", -signal.SIGKILL),
}
"""The state and the exit code of a run, by what ends it."""
ENDINGS = tuple(OUTCOMES)
RUN_STATE: dict[str, Callable[..., Any]] = {
    name: getattr(run_state, name) for name in ("begin", "rename", "write", "commit")
}
"""The functions that write checkpoints of a run."""
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
        self.told = 0
        """Steps of all nodes, as the Monitor was told last."""
        self.evaluations: list[EvaluationResultMsg] = []
        self.environments = 0
        self.of_evaluations: set[int] = set()
        """Environments of evaluations."""

    def inserted_by(self, environment: int) -> list[Episode]:
        return [episode for episode in self.inserted if episode[0] == environment]

    def check(self, *, gaps: bool = False, goal: bool = True, states: Collection[str] = ("done",)) -> None:
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
        assert not {environment for environment, _, _ in self.inserted} & self.of_evaluations
        evaluated = [(each.env_steps, each.final) for each in self.evaluations]
        assert len(set(evaluated)) == len(evaluated)
        last = self.progress[-1]
        assert last.state in states
        assert self.told == last.env_steps
        assert last.episodes == len(self.inserted)
        if goal:
            assert last.env_steps >= last.goal_steps
            assert last.updates > 0


class RunCounters(Env):
    """Episodes of one to four steps, each of which says whose it is."""

    spec = SPEC

    def __init__(self, n_envs: int, *, seed: int, account: Account, evaluates: bool = False) -> None:
        self.n_envs = n_envs
        self._account = account
        account.environments += 1
        if evaluates:
            account.of_evaluations.add(account.environments)
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


class CountingPolicy(Policy):
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
            obs = episodes.fields["obs"].dense()
            account.inserted += [(int(a), int(b), int(c)) for a, b, c in obs[starts, 0]]

    return Recording(SPEC, 16)


class Disk:
    """Keeps the checkpoints of a run, unless it is full, but no policies and no replay buffers."""

    def __init__(self, patches: pytest.MonkeyPatch) -> None:
        self.full = False
        self.failures = 0
        """Attempts to write that fail before the next one succeeds."""
        self.commits = 0
        """Complete checkpoints."""
        self.healthy = True
        """False from an attempt that has failed to the next complete checkpoint."""
        for name in ("begin", "rename", "write"):
            patches.setattr(run_state, name, self._writing(RUN_STATE[name]))
        patches.setattr(run_state, "commit", self._commit)
        for elsewhere in (
            "components.trainer.save_checkpoint",
            "components.run_evaluations.save_params",
            "components.checkpoints.array_file.Checkpointed.save",
        ):
            patches.setattr(elsewhere, self._writing(lambda *_, **__: None))
        self._commit_for_good = self._writing(RUN_STATE["commit"])
        patches.setattr(os, "fsync", lambda _: None)

    def _writing(self, write: Callable[P, T]) -> Callable[P, T]:
        def attempt(*args: P.args, **kwargs: P.kwargs) -> T:
            if self.full or self.failures:
                self.failures = max(0, self.failures - 1)
                self.healthy = False
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(*args, **kwargs)

        return attempt

    def _commit(self, *args: Any, **kwargs: Any) -> Path:
        path = self._commit_for_good(*args, **kwargs)
        self.commits += 1
        self.healthy = True
        return path


class SimulatedChild:
    """A process of the launcher, with what it uses of `asyncio.subprocess.Process`."""

    def __init__(self, process: Process, sim: Simulation) -> None:
        self.pid = process.starts + 1
        self.returncode: int | None = None
        self._process = process
        # Outside of the root: the processes outlive it.
        self._life = sim.loop.create_task(self._live(), context=sim.loop.strands.outside.context.copy())

    async def _live(self) -> int:
        with suppress(ProcessDied):
            await self._process.start()
        reason = await self._process.ended()
        self.returncode = 0 if reason == "asked to stop" else -signal.SIGKILL
        return self.returncode

    async def wait(self) -> int:
        return await asyncio.shield(self._life)

    def send_signal(self, number: signal.Signals) -> None:
        self._process.kill()


class SimulatedKeeper(Keeper):
    """Starts and restarts simulated processes as the real one does real ones."""

    def __init__(self, simulated: dict[str, Process], sim: Simulation, *args: Any) -> None:
        super().__init__(*args)
        self._simulated = simulated
        self._sim = sim

    async def _start(self, node: str) -> Any:
        self._relays[node] = asyncio.get_running_loop().create_future()  # type: ignore[assignment]  # no output to relay
        self._relays[node].set_result(None)  # type: ignore[attr-defined]  # a future here
        child: Any = SimulatedChild(self._simulated[node], self._sim)
        self._processes[node] = child
        return child

    def _send(self, process: Any, number: signal.Signals) -> None:
        process.send_signal(number)


class SimulatedProcesses(RunProcesses):
    """Simulated processes that are given up, and fail the run, as real ones do."""

    def __init__(
        self,
        root: Node,
        plan: RunPlan,
        processes: Sequence[Process],
        requirements: Sequence[Requirement],
        sim: Simulation,
    ) -> None:
        self._simulated = {process.name: process for process in processes}
        self._sim = sim
        self.failed_at: float | None = None
        """When too few processes were left, in seconds of the simulation."""
        super().__init__(root, plan, list(self._simulated), requirements=requirements)

    def _keeper(self, plan: RunPlan, policy: Any, *, forks: bool) -> Keeper:
        logs = RunDirectory(plan.run_directory).logs
        return SimulatedKeeper(
            self._simulated, self._sim, self._root, plan, logs, lambda: self._root.listening, self._give_up, policy
        )

    def _fail(self, text: str, cause: OrchestraError | None = None) -> None:
        self.failed_at = self.failed_at or self._sim.loop.time()
        super()._fail(text, cause)


class Listener(Actor[ProgressMsg | PlayedMsg | EvaluationResultMsg | SaveCheckpointMsg]):
    """In the Monitor's place."""

    def __init__(self, account: Account) -> None:
        self._account = account

    @on(ProgressMsg)
    def progress(self, msg: ProgressMsg) -> None:
        self._account.progress.append(msg)

    @on(PlayedMsg)
    def played(self, msg: PlayedMsg) -> None:
        self._account.told = sum(steps for _, steps, _ in msg.nodes)

    @on(EvaluationResultMsg)
    def evaluated(self, msg: EvaluationResultMsg) -> None:
        self._account.evaluations.append(msg)

    @on(SaveCheckpointMsg)
    def save(self, msg: SaveCheckpointMsg) -> str:
        return "nowhere"


class Plan:
    """A run whose every free choice is the seed's.

    Args:
        sim: of the run.
        workers_die: whether the processes of the workers are restarted.
        proxy_dies: whether the process of the proxy is, too.
        launched: whether the root starts, restarts and gives up all other processes, as the one of `orchestra run`.
        goal: environment steps of the run.
        manager, gatherer, conductor, evaluator: the classes of the trajectory manager, the proxy, the orchestrator and
            the evaluator.
    """

    def __init__(
        self,
        sim: Simulation,
        *,
        workers_die: bool = False,
        proxy_dies: bool = False,
        launched: bool = False,
        goal: int | None = None,
        manager: Any = TrajectoryManager,
        gatherer: Any = WorkerProxy,
        conductor: Any = Orchestrator,
        evaluator: Any = Evaluator,
    ) -> None:
        random = sim.random
        self.sim = sim
        self.account = Account()
        self.env = partial(RunCounters, account=self.account)
        self.policy = partial(CountingPolicy, account=self.account)
        self.prioritized = random.chance(0.3)
        self.n_envs = 1 + random.below(3)
        self.goal = 12 + random.below(24) if goal is None else goal
        self.publish_interval = 1 + random.below(3)
        self.manager, self.gatherer, self.conductor = manager, gatherer, conductor
        self.topology = Topology("simulated")
        self._plan_learner()
        upstream: Ref[Any] = Ref("learner/orchestrator")
        env = partial(self.env, evaluates=True)
        factory = {"env": env, "policy": self.policy, "to": upstream}
        self.evaluator = self.topology.node("evaluator").spawn("evaluator", self.small(evaluator), **factory)
        proxies = ["host", "host-1", "host-2"][: 1 + random.below(3)] if random.chance(0.7) else []
        self.above: dict[str, str] = {}
        """By node, that of its upstream."""
        upstreams = [upstream]
        for name in proxies:  # a tree: the first is below the Orchestrator, each other one below any of those before
            to = random.choice(upstreams)
            self.above[name] = node_of(to.address)
            ref: Ref[Any] = self.topology.node(name).spawn("proxy", self.small(self.gatherer), to=to)
            upstreams = [*upstreams[name == "host" :], ref]
        workers = [f"worker-{number}" for number in range(1 + random.below(3))]
        self.players = []
        for name in workers:
            to = random.choice(upstreams)
            self.above[name] = node_of(to.address)
            self.players.append(self._plan_worker(name, to))
        life: dict[str, Any] = {"main": self._run_root, "may_fail": True} if launched else {"setup": self._spawn}
        self.learner = sim.node("learner", run_directory=Path("nowhere"), **life)
        self.others = [
            sim.node(
                name,
                partial(spawn_all, self.topology),
                auto_restart=not launched and (proxy_dies or (workers_die and name not in proxies)),
                # A proxy below another starts in vain if that one has ended with the run meanwhile.
                may_fail=launched or (name in proxies and self.above[name] in proxies),
                run_directory=Path("nowhere") if launched else None,
            )
            for name in ["evaluator", *proxies, *workers]
        ]
        self.stopping = Stopping()
        self.ending: Ending | None = None

    async def end(self) -> None:
        """Wait until the Orchestrator has stopped, and then the learner."""
        assert await self.orchestrator == IN_ORDER
        assert not any(process.failures for process in self.others if not process.auto_restart)
        await self.learner.stop()

    def interrupt(self) -> None:
        """Ask the Orchestrator to stop, as Ctrl-C does."""
        if not self.orchestrator.done():
            self.learner.node.cell("learner/orchestrator").request_stop()

    def check_pace(self) -> None:
        """As many batches were learned for the episodes as asked, except for the error buffer.

        A worker without credits sends all episodes that end in its last step.
        """
        last = self.account.progress[-1]
        off = last.updates - self.ratio * (last.episodes - LEARNING_STARTS)
        assert -self.buffer - self.ratio * self.n_envs * len(self.players) <= off <= self.buffer

    def small(self, kind: type[Any]) -> Any:
        """The same actor, with a mailbox that may be as small as one message."""
        capacity = self.sim.random.choice((1, 1, 2, 3, 4096))
        return type(kind.__name__, (kind,), {"mailbox_capacity": capacity})

    def _spawn(self, node: Node) -> None:
        spawn_all(self.topology, node)
        self.orchestrator = node.cell("learner/orchestrator").terminated

    async def _run_root(self, node: Node) -> str:
        launch = RunPlan(None, (), self.sim.seed, Path("nowhere"))
        launcher = self.launcher = SimulatedProcesses(node, launch, self.others, self.topology.requirements, self.sim)
        self.ending = await run_root(self.topology, launch, node, launcher, self.stopping)
        return self.ending.reason

    def _plan_learner(self) -> None:
        random = self.sim.random
        node = self.topology.node("learner")
        monitor = node.spawn("monitor", self.small(Listener), self.account)
        kind = PrioritizedEpisodeReplay if self.prioritized else EpisodeReplay
        manager = node.spawn("trajectories", self.small(self.manager), replay=recording(kind, self.account))
        self.ratio = ratio = random.choice((0.25, 0.5, 1.0, 2.0))
        self.buffer = max(2.0 * ratio, random.choice((2.0, 8.0)))
        orchestrator = node.spawn(
            "orchestrator",
            self.small(self.conductor),
            trajectories=manager,
            monitor=monitor,
            limiter=SampleToInsertRatio(ratio, min_size=LEARNING_STARTS, error_buffer=self.buffer),
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
        self.topology.until(orchestrator)

    def _plan_worker(self, name: str, to: Ref[Any]) -> Ref[Any]:
        return self.topology.node(name).spawn(
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
    plan.check_pace()
    assert plan.account.evaluations[-1].final


async def interrupted(sim: Simulation) -> None:
    plan = Plan(sim, workers_die=True, proxy_dies=True)
    await sim.start()
    async with sim.faults(cuts=3.0, pauses=0.3):
        await asyncio.sleep(sim.random.exponential(0.3))
        plan.interrupt()
        await plan.end()
    plan.account.check(goal=False, states=("done", "failed"))  # it may have reached its goal before


async def disturbed(sim: Simulation) -> None:
    plan = Plan(sim, workers_die=True, proxy_dies=True)
    await sim.start()
    async with sim.faults(cuts=sim.random.choice((3.0, 15.0)), partitions=0.3, pauses=0.3):
        await plan.end()
    # Who is held up for long enough is taken for dead; then what it told in between is lost.
    plan.account.check(gaps=any("peer gone" in line and "goodbye" not in line for line in sim.log))
    plan.check_pace()


async def deadly_for_workers(sim: Simulation) -> None:
    plan = Plan(sim, workers_die=True)
    await sim.start()
    async with sim.faults(kills=3.0, cuts=1.0, pauses=0.3):
        await asyncio.sleep(sim.random.exponential(1.0))
    await plan.end()
    plan.account.check()
    plan.check_pace()


async def deadly_for_all_but_the_learner(sim: Simulation) -> None:
    plan = Plan(sim, workers_die=True, proxy_dies=True)
    await sim.start()
    async with sim.faults(kills=3.0, cuts=1.0, pauses=0.3):
        await asyncio.sleep(sim.random.exponential(1.0))
    await plan.end()
    plan.account.check(gaps=True)
    plan.check_pace()


async def learner_dies(sim: Simulation) -> None:
    plan = Plan(sim)
    await sim.start()
    await asyncio.wait({plan.orchestrator}, timeout=sim.random.exponential(0.3))
    plan.learner.kill()
    await sim.until(lambda: not any(process.running for process in sim.processes.values()), within=5.0)


class Chaos:
    """Faults for some time, in which workers, proxies and links die and the disk fails; then the run ends.

    Args:
        seconds: for which the faults go on.
        endings: of which the seed chooses one.
        bugs: classes of `Plan`.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        seconds: float,
        endings: Sequence[str] = ENDINGS,
        **bugs: Any,
    ) -> None:
        self._monkeypatch, self._seconds, self._endings, self._bugs = monkeypatch, seconds, endings, bugs
        self.seen: Counter[tuple[str, str, int]] = Counter()
        """What was to end the runs, their states and their exit codes."""

    async def __call__(self, sim: Simulation) -> None:
        with self._monkeypatch.context() as patches, TemporaryDirectory() as folder:
            patches.chdir(folder)
            self.patches = patches
            patches.setattr("orchestra.simulation.loop.OFFLOADED_S", 5.0)  # slow games: few events
            self.run = RunDirectory(Path(folder) / "nowhere")
            self.run.path.mkdir()
            self.disk = Disk(patches)
            await self._run(sim, patches)

    async def _run(self, sim: Simulation, patches: pytest.MonkeyPatch) -> None:
        plan = self.plan = Plan(sim, launched=True, goal=1_000_000, **self._bugs)
        least = 1 + sim.random.below(len(plan.players))
        plan.topology.require(*plan.players, at_least=least)
        plan.topology.require(plan.evaluator)
        self.least = least
        ending = sim.random.choice(self._endings)
        calm = sim.random.chance(0.6)
        await plan.learner.start()
        self.outcome = sim.loop.create_task(self._outcome())
        async with sim.faults(kills=1 / 90, cuts=1 / 20, partitions=1 / 120, pauses=1 / 60, mortal=plan.others):
            seconds = sim.random.uniform(0.0, self._seconds) if ending == "full disk" else self._seconds
            await self._wait(seconds, hiccups=True)
            if not calm:
                ending = await self._end(sim, ending)
        if calm:
            if not self.outcome.done():
                patches.setattr("orchestra.simulation.loop.OFFLOADED_S", 0.05)
                await self._recover(sim)
            ending = await self._end(sim, ending)
        if ending == "learner lost":
            await sim.until(lambda: not any(process.running for process in sim.processes.values()), within=30.0)
        else:
            await self._check(ending, calm=calm)

    async def _end(self, sim: Simulation, ending: str) -> str:
        """Bring about the `ending` at any moment; return it, or how the run ended before."""
        self.disk.failures = 0
        await sim.until(lambda: self.outcome.done() or (self.disk.commits > 0 and self.disk.healthy), within=600.0)
        await self._wait(sim.random.exponential(1.0))
        if self.outcome.done():
            assert self._too_few()
            return "workers lost"
        await getattr(self, f"_{ending.replace(' ', '_')}")(sim)
        if ending != "learner lost":
            await self._wait(900.0)
            assert self.outcome.done()
        return "workers lost" if self._too_few() else ending

    def _too_few(self) -> bool:
        """Whether too few workers are left, or no evaluator, because their processes have died too often."""
        given_up = [each.node for each in self.plan.launcher.statistics() if each.given_up]
        left = len(self.plan.players) - sum(name.startswith("worker") for name in given_up)
        return left < self.least or "evaluator" in given_up or len(given_up) == len(self.plan.others)

    async def _outcome(self) -> RunResult | RunFailed:
        """Wait for the end of the run, and conclude it as `orchestra run` does."""
        log_file = self.run.logs / "learner.jsonl"
        try:
            return await conclude(self.run, log_file, self._ending(log_file))
        except RunFailed as failed:
            return failed
        finally:
            self.over_at = self.plan.sim.loop.time()

    async def _ending(self, log_file: Path) -> Ending:
        with failing_in_one_line("the run", log_file, self.run):
            await self.plan.learner.ended()
            if self.plan.learner.failures:
                raise self.plan.learner.failures[-1]
        assert self.plan.ending is not None
        return self.plan.ending

    async def _wait(self, seconds: float, *, hiccups: bool = False) -> None:
        """Wait, or until the run is over. With `hiccups` single checkpoints cannot be written meanwhile."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end and not self.outcome.done():
            pause = self.plan.sim.random.exponential(200.0) if hiccups else seconds
            await asyncio.wait({self.outcome}, timeout=min(pause, end - loop.time()))
            self.disk.failures = int(hiccups and self.disk.healthy)

    async def _recover(self, sim: Simulation) -> None:
        """Without faults the run counts the workers that live, and takes checkpoints again."""
        self.disk.failures = 0
        given_up = {each.node for each in self.plan.launcher.statistics() if each.given_up}
        workers = 0
        for process in self.plan.others:
            path = [process.name]
            while path[-1] in self.plan.above:
                path.append(self.plan.above[path[-1]])
            workers += process.name.startswith("worker") and not given_up.intersection(path)
        await sim.until(lambda: self.progress.workers == workers, within=120.0)
        before = self.disk.commits
        await sim.until(lambda: self.disk.commits > before, within=120.0)

    @property
    def progress(self) -> ProgressMsg:
        return self.plan.account.progress[-1]

    async def _goal(self, sim: Simulation) -> None:
        orchestrator: Any = self.plan.learner.node.cell("learner/orchestrator").actor
        orchestrator.goal_steps = self.progress.env_steps

    async def _interrupted(self, sim: Simulation) -> None:
        self.plan.stopping.request("interrupted")

    async def _stopped(self, sim: Simulation) -> None:
        self.plan.stopping.request("stopped")

    async def _aborted(self, sim: Simulation) -> None:
        self.plan.stopping.request("interrupted")
        self.plan.stopping.request("interrupted", abort=True)

    async def _full_disk(self, sim: Simulation) -> None:
        self.disk.full = True

    async def _workers_lost(self, sim: Simulation) -> None:
        for _ in range(120):
            for process in self.plan.others:
                process.kill()
            await self._wait(1.0)

    async def _learner_lost(self, sim: Simulation) -> None:
        self.plan.learner.kill()
        self.outcome.cancel()

    async def _check(self, ending: str, *, calm: bool) -> None:
        """What the run reports, in its summary, its exit code and to the Monitor, is how it ended."""
        outcome = await self.outcome
        result = outcome.result if isinstance(outcome, RunFailed) else outcome
        code, summary = of_run(outcome), self.run.ending()
        state, expected = OUTCOMES[ending]
        assert (summary["state"], code) == (state, expected), outcome
        assert result.state == {"done": "completed"}.get(state, state)
        self.seen[ending, state, code] += 1
        saved = self.run.resume_command is not None
        assert saved or ending == "workers lost"  # all others have had the time
        newest = run_state.read(self.run.newest_state(), "learner/orchestrator")[0] if saved else {}
        assert bool(summary["resume"]) == (saved and state != "done")
        if ending == "full disk":
            assert "No space left" in str(outcome)
            assert self.run.newest_state().name in str(outcome)
        elif ending == "workers lost":
            assert isinstance(outcome.__cause__, ExceptionGroup)
            assert isinstance(outcome.__cause__.exceptions[0], ActorsLost)
            failed_at = self.plan.launcher.failed_at
            assert failed_at is not None
            assert not calm or self.over_at - failed_at <= 10.0
        elif ending != "aborted" and calm:
            assert newest["env_steps"] == self.progress.env_steps
        if ending == "goal" and calm:
            assert [each.final for each in self.plan.account.evaluations].count(True) == 1
        if ending != "aborted":
            # A run that has lost its workers stops within 10 s, also if saving takes longer.
            states = (state, "saving") if ending == "workers lost" else (state,)
            self.plan.account.check(gaps=True, goal=False, states=states)
        assert self.progress.updates > 0 or ending == "workers lost"


# What holds -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_no_episode_is_lost_or_counted_twice_and_no_mailbox_is_too_small() -> None:
    each_seed(undisturbed, 80, limit=600.0)


@pytest.mark.slow
def test_a_run_can_be_stopped_at_any_time() -> None:
    each_seed(interrupted, 60, limit=600.0)


@pytest.mark.slow
def test_neither_does_a_broken_connection_cost_or_double_an_episode() -> None:
    each_seed(disturbed, 60, limit=600.0)


@pytest.mark.slow
def test_what_a_dead_worker_told_counts_once_and_the_run_ends() -> None:
    each_seed(deadly_for_workers, 60, limit=600.0)


@pytest.mark.slow
def test_nothing_counts_twice_and_the_run_ends_when_a_proxy_dies_too() -> None:
    each_seed(deadly_for_all_but_the_learner, 60, limit=600.0)


@pytest.mark.slow
def test_when_the_learner_dies_all_others_end_within_seconds() -> None:
    each_seed(learner_dies, 40, limit=600.0)


@pytest.mark.slow
def test_after_half_an_hour_of_kills_broken_links_and_disks_every_run_ends_in_the_right_state_and_exit_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`docs/testing.md` has the command that runs 200 seeds."""
    chaos = Chaos(monkeypatch, HALF_AN_HOUR_S)
    each_seed(chaos, 6, limit=HALF_AN_HOUR_S + 1200.0)
    print(*(f"{count:4} {what}" for what, count in sorted(chaos.seen.items())), sep="\n")


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_run_reports_how_it_ended_although_workers_and_links_die(
    monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    each_seed(Chaos(monkeypatch, 60.0, [ending]), 3, limit=1200.0)


class Busy(Chaos):
    """From the loss of the workers on, all that is offloaded takes minutes: the Trainer does not answer in time."""

    async def _workers_lost(self, sim: Simulation) -> None:
        self.patches.setattr("orchestra.simulation.loop.OFFLOADED_S", 600.0)
        await super()._workers_lost(sim)


def test_a_run_that_has_lost_its_workers_ends_within_ten_seconds_although_its_trainer_is_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    each_seed(Busy(monkeypatch, 60.0, ["workers lost"]), 5, limit=1200.0)


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
    """Passes on two messages of experience of three."""

    came = 0

    @on(InsertTransitionMsg)
    async def insert(self, msg: InsertTransitionMsg) -> None:
        self.came += 1
        if self.came % 3:
            await super().insert(msg)


class Nostalgic(WorkerProxy):
    """Hands out the first parameters it got, together with the pace."""

    first: LoadParamsMsg | None = None

    @on(LoadParamsMsg)
    async def load(self, msg: LoadParamsMsg) -> None:
        self.first = self.first or msg
        await super().load(msg)

    @on(CollectMsg)
    async def set_collecting(self, msg: CollectMsg) -> None:
        await super().set_collecting(msg)
        if self.first is not None:
            for worker in self._workers.refs.values():
                await worker.tell(self.first)


class Deaf(Orchestrator):
    """Misses nine tenths of the reports about workers. A later one tells all again."""

    @on(WorkerCountMsg)
    async def count_workers(self, msg: WorkerCountMsg) -> None:
        if self.clock.monotonic() % 2 < 0.2:
            await super().count_workers(msg)


class Mistaken(Orchestrator):
    """Takes Ctrl-C for SIGTERM."""

    @on(InterruptMsg)
    async def interrupt(self, msg: InterruptMsg) -> None:
        await super().interrupt(InterruptMsg(state="stopped"))


class Lazy(Evaluator):
    """Drops the evaluations of even numbers of steps."""

    @on(EvaluateMsg)
    async def evaluate(self, msg: EvaluateMsg) -> None:
        if msg.env_steps % 2:
            await super().evaluate(msg)


class Careless(Orchestrator):
    """Does not save when it is stopped."""

    @on(InterruptMsg)
    async def interrupt(self, msg: InterruptMsg) -> None:
        await super().interrupt(msg)
        self.stop()


@pytest.mark.parametrize(
    ("broken", "ending"), [(Deaf, "goal"), (Mistaken, "interrupted"), (Lazy, "goal"), (Careless, "stopped")]
)
def test_a_run_that_ends_wrongly_is_found(
    monkeypatch: pytest.MonkeyPatch, broken: type[Actor[Any]], ending: str
) -> None:
    bug = {"evaluator" if broken is Lazy else "conductor": broken}
    assert failing_seed(Chaos(monkeypatch, 30.0, [ending], **bug), 20, limit=1200.0) is not None


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
