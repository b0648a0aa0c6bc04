"""What the tests of the actors share: a node with probes on it, a small strict environment, a scripted policy."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from team_experience import team_episodes

from components.envs.base import Env, EnvSpec
from components.policies.base import EpisodeBatch, Policy, TrainStepResult
from messages import InsertTransitionMsg
from orchestra import Message, Node, Ref, freeze, testing

# A node, and probes ---------------------------------------------------------------------------------------------------


class BreakMsg(Message):
    """Fail for good."""


class Probe(testing.Probe):
    """An actor's stand-in that is started, and can be broken."""

    def __init__(self, node: Node, name: str, *kinds: type[Message], answers: Mapping[type[Message], Any]) -> None:
        super().__init__(*kinds, BreakMsg, answers={**answers, BreakMsg: RuntimeError("broken on purpose")})
        self.node, self.ref = node, self.start(node, name)

    @property
    def told(self) -> list[Any]:
        return self.messages

    def of(self, kind: type[Message]) -> list[Any]:
        return [message for message in self.messages if isinstance(message, kind)]

    async def hear(self, kind: type[Message], count: int = 1) -> Any:
        """Wait for the `count`-th message of `kind`; fail as soon as every actor is idle without it."""
        idle = asyncio.ensure_future(testing.settle(self.node))
        idle.add_done_callback(lambda _: self._news.set())
        try:
            while len(got := self.of(kind)) < count:
                assert not idle.done(), f"{len(got)} of {count} {kind.__name__} came, and every actor is idle"
                self._news.clear()
                await self._news.wait()
            return got[count - 1]
        finally:
            idle.cancel()

    async def next(self, kind: type[Message]) -> Any:
        """Wait for one more message of `kind` than it has heard."""
        return await self.hear(kind, len(self.of(kind)) + 1)


class Stage:
    """A live node, and what a test does with it."""

    def __init__(self, node: Node, clock: testing.ManualClock) -> None:
        self.node = node
        self.clock = clock

    def probe(self, name: str, *kinds: type[Message], answers: Mapping[type[Message], Any] | None = None) -> Probe:
        return Probe(self.node, name, *kinds, answers=answers or {})

    async def kill(self, probe: Probe) -> None:
        terminated = self.node.cell(probe.ref.address).terminated
        await probe.ref.tell(BreakMsg())
        await terminated

    async def stop(self, ref: Ref[Any]) -> None:
        await self.node.cell(ref.address).stop()

    async def turn(self) -> None:
        """Let everything that is ready run once."""
        await asyncio.sleep(0)

    async def settle(self) -> None:
        """Wait until every actor waits for a message, and there is none."""
        await testing.settle(self.node)


@pytest.fixture
def stage() -> Callable[..., Any]:
    @asynccontextmanager
    async def live(
        *, run_directory: Path | None = None, resume_from: Path | None = None, seed: int = 0
    ) -> AsyncIterator[Stage]:
        clock = testing.ManualClock()
        node = Node(
            "here", seed=seed, clock=clock, run_directory=run_directory, resume_from=resume_from, deterministic=True
        )
        async with node.running():
            yield Stage(node, clock)

    return live


# What is played -------------------------------------------------------------------------------------------------------


class Corridor(Env):
    """Episodes of known lengths, observations that name their copy, episode and step, and no mercy for misuse.

    Copy i walks its episodes of `plan[i][k % len(plan[i])]` steps; longer ones than the limit are cut there.
    """

    LIMIT = 6
    PLAN = ((1, 9, 3), (6, 2), (4, 4, 1, 6, 7), (2, 8))

    def __init__(self, n_envs: int, *, seed: int, first: int = 0, plan: tuple[tuple[int, ...], ...] = PLAN) -> None:
        self.spec = EnvSpec("corridor", n_agents=2, n_actions=3, obs_size=4, state_size=3, episode_limit=self.LIMIT)
        self.n_envs, self.seed, self.closed = n_envs, seed, False
        self._plan = [plan[(first + i) % len(plan)] for i in range(n_envs)]
        self._copy = first + np.arange(n_envs)
        self._episode = np.full(n_envs, -1)
        self._t = np.zeros(n_envs, np.int64)
        self._sum = np.zeros(n_envs, np.int64)
        self._over = np.ones(n_envs, np.bool_)
        self.obs = np.zeros((n_envs, 2, 4), np.float32)
        self.state = np.zeros((n_envs, 3), np.float32)
        self.available = np.zeros((n_envs, 2, 3), np.bool_)
        self.reward = np.zeros(n_envs, np.float32)
        self.terminated = np.zeros(n_envs, np.bool_)
        self.truncated = np.zeros(n_envs, np.bool_)
        self.won = np.zeros(n_envs, np.bool_)

    def reset(self, which: np.ndarray | None = None) -> None:
        assert not self.closed
        which = np.ones(self.n_envs, np.bool_) if which is None else which
        if which.shape != (self.n_envs,) or which.dtype != np.bool_:
            raise ValueError(f"a mask of {self.n_envs} copies, got {which!r}")
        self._episode[which] += 1
        self._t[which] = self._sum[which] = 0
        self._over[which] = self.terminated[which] = self.truncated[which] = self.won[which] = False
        self.reward[which] = 0.0
        self._look(which)

    def step(self, actions: np.ndarray) -> None:
        assert not self.closed
        if actions.shape != (self.n_envs, 2) or actions.dtype != np.int64:
            raise ValueError(f"actions: expected int64 of ({self.n_envs}, 2), got {actions.dtype} of {actions.shape}")
        if self._over.any():
            raise ValueError(f"copies {np.flatnonzero(self._over)} are over")
        if not np.take_along_axis(self.available, actions[..., None], axis=2).all():
            raise ValueError(f"not available: {actions}")
        self._t += 1
        self._sum += actions.sum(1)
        planned = [plan[k % len(plan)] for plan, k in zip(self._plan, self._episode, strict=True)]
        self.terminated[:] = self._t == planned
        self.truncated[:] = ~self.terminated & (self._t == self.LIMIT)
        self._over[:] = self.terminated | self.truncated
        self.won[:] = self.terminated & (self._sum % 2 == 0)
        self.reward[:] = self._t + actions @ [0.25, 0.5]
        self._look(np.ones(self.n_envs, np.bool_))

    def close(self) -> None:
        self.closed = True

    def _look(self, which: np.ndarray) -> None:
        for i in np.flatnonzero(which):
            for agent in range(2):
                self.obs[i, agent] = [self._copy[i], self._episode[i], self._t[i], agent + self._sum[i] / 8]
                self.available[i, agent] = [(self._copy[i] + self._t[i] + agent + action) % 3 for action in range(3)]
            self.state[i] = [self._copy[i], self._episode[i], self._t[i]]


class Scripted(Policy):
    """Plays by arithmetic on all that it is given, so that a mistake in any of it shows in the actions."""

    def __init__(self, spec: EnvSpec, *, seed: int, size: int = 2) -> None:
        self.spec = spec
        self.seed = seed
        self.flat = np.full(size, float(seed % 5), np.float32)
        self.updates = 0
        self.batches: list[EpisodeBatch] = []
        self.epsilons: list[float] = []

    def initial_hidden(self, n_envs: int) -> np.ndarray:
        return np.zeros((n_envs, self.spec.n_agents, 1), np.float32)

    def act(self, obs: Any, available: Any, last_actions: Any, hidden: Any, *, epsilon: float, rng: Any) -> Any:
        self.epsilons.append(epsilon)
        after = (hidden * 0.5 + obs.sum(-1, keepdims=True) + 2.0 * last_actions[..., None] + 3.0).astype(np.float32)
        wanted = np.abs(np.floor(after[..., 0] * 4.0) + self.flat[0]).astype(np.int64) % available.sum(-1)
        actions = (available.cumsum(-1) > wanted[..., None]).argmax(-1)
        return actions, after

    def learn(self, batch: EpisodeBatch) -> TrainStepResult:
        self.batches.append(batch)
        self.updates += 1
        self.flat += 1.0
        return TrainStepResult(
            {"loss": 0.5 * self.updates, "grad_norm": 1.0},
            freeze(np.arange(len(batch.lengths), dtype=np.float32) + self.updates),
        )

    def params(self) -> np.ndarray:
        return freeze(self.flat.copy())

    def load(self, params: np.ndarray) -> None:
        if params.shape != self.flat.shape:
            raise ValueError(f"expected {self.flat.shape}, got {params.shape}")
        self.flat = params.copy()

    def state_dict(self) -> dict[str, Any]:
        return {"flat": torch.from_numpy(self.flat.copy()), "updates": self.updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if tuple(state["flat"].shape) != self.flat.shape:
            raise ValueError(f"flat: expected shape {self.flat.shape}, got {tuple(state['flat'].shape)}")
        self.flat, self.updates = state["flat"].numpy().copy(), state["updates"]


@pytest.fixture
def corridor() -> type[Corridor]:
    return Corridor


@pytest.fixture
def scripted() -> type[Scripted]:
    return Scripted


@pytest.fixture
def made_policies(scripted) -> tuple[Callable[..., Scripted], list[Scripted]]:
    """A factory of scripted policies, and the list of all policies that it has made."""
    made: list[Scripted] = []

    def policy(spec: EnvSpec, *, seed: int) -> Scripted:
        made.append(scripted(spec, seed=seed))
        return made[-1]

    return policy, made


@pytest.fixture
def episodes() -> Callable[..., InsertTransitionMsg]:
    """Make a message of episodes of the given lengths, each step of which is rewarded with `reward`."""

    def make(
        *lengths: int,
        reward: float = 1.0,
        won: bool = False,
        version: int = 0,
        epsilon: float = 0.5,
        mark: float = 0.0,
        sender: str = "",
    ) -> InsertTransitionMsg:
        n_steps, n = sum(lengths), len(lengths)
        available = np.ones((n_steps + n, 2, 3), np.bool_)
        return team_episodes(
            obs=freeze(np.full((n_steps + n, 2, 4), mark, np.float32)),
            state=freeze(np.full((n_steps + n, 3), mark, np.float32)),
            available=freeze(available),
            actions=freeze(np.ones((n_steps, 2), np.int64)),
            reward=freeze(np.full(n_steps, reward, np.float32)),
            lengths=freeze(np.array(lengths, np.int32)),
            terminated=freeze(np.ones(n, np.bool_)),
            won=freeze(np.full(n, won, np.bool_)),
            versions=freeze(np.full(n_steps, version, np.int32)),
            epsilon=freeze(np.full(n, epsilon, np.float32)),
            newest_version=None,
            sender=sender,
            source="",
        )

    return make


@pytest.fixture(scope="session")
def spec() -> EnvSpec:
    return EnvSpec("tiny", n_agents=2, n_actions=3, obs_size=4, state_size=5, episode_limit=6)


@pytest.fixture(scope="session")
def make_episodes(spec):
    """Return a function that makes what `insert` takes; every number in an episode tells which it is."""

    def make(lengths, *, first=0):
        e, n = len(lengths), sum(lengths)
        frames = np.concatenate([first + i + np.arange(k + 1) / 10 for i, k in enumerate(lengths)])
        steps = np.concatenate([first + i + np.arange(k) / 10 for i, k in enumerate(lengths)])
        per_agent = frames[:, None, None] + np.arange(spec.n_agents)[:, None] * 100.0
        return {
            "obs": np.broadcast_to(per_agent, (n + e, spec.n_agents, spec.obs_size)).astype(np.float32),
            "state": np.broadcast_to(-1 - frames[:, None], (n + e, spec.state_size)).astype(np.float32),
            "available": np.broadcast_to(
                (frames * 10).round().astype(int)[:, None, None] % 3 != np.arange(spec.n_actions),
                (n + e, spec.n_agents, spec.n_actions),
            ).copy(),
            "actions": np.broadcast_to((steps * 10).round().astype(np.int64)[:, None] % 3, (n, spec.n_agents)).copy(),
            "reward": (steps + 0.5).astype(np.float32),
            "terminated": np.arange(first, first + e) % 2 == 0,
            "lengths": np.array(lengths, np.int32),
        }

    return make


@pytest.fixture
def four_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers get credits for at most four episodes of each environment."""
    monkeypatch.setattr("components.downstream.MOST_AHEAD", 4)
