"""Environments of others, in a few lines each: what they show says which episode and which step it is of."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from pettingzoo import AECEnv, ParallelEnv


class Counted(gymnasium.Env[Any, Any]):
    """Shows (episode, step, what was drawn); ends or is cut after a number of steps that is drawn at its reset."""

    def __init__(self, cut: bool = True, **changed: Any) -> None:
        self.observation_space = spaces.Box(-1.0, 1e6, (3,), np.float32)
        self.action_space = spaces.Discrete(3)
        self._episode, self._cut, self._changed = -1, cut, changed
        self.max_episode_steps = 9

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._episode, self._step = self._episode + 1, 0
        self._length = int(self.np_random.integers(1, 6))
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        assert self._step < self._length, "it is over"
        self._step += 1
        over = self._step == self._length
        truncated = over and self._cut and self._length % 2 == 0
        reward = 10.0 * self._step + float(action)
        return self._seen(), reward, over and not truncated, truncated, {"is_success": over and self._length == 5}

    def _seen(self) -> Any:
        return np.array([self._episode, self._step, self.np_random.random()], np.float32)


def counted(**arguments: Any) -> Counted:
    """Make one that names no limit: the limit is the caller's."""
    return Counted(**arguments)


def counted_vector(num_envs: int, mode: str) -> SyncVectorEnv:
    """Make copies in a vector environment that begins episodes anew as `mode` says."""
    envs = SyncVectorEnv([Counted] * num_envs, autoreset_mode=AutoresetMode(mode))
    envs.max_episode_steps = 9
    return envs


class Shaped(gymnasium.Env[Any, Any]):
    """Shows samples of a space and takes those of another; `wrong` is shown at the third step."""

    def __init__(self, seen: Any, done: Any, wrong: Any = None, reward: Any = 1.0) -> None:
        self.observation_space, self.action_space = seen, done
        self._wrong, self._reward, self.done = wrong, reward, []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self._step = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self._step += 1
        self.done.append(action)
        seen = self._wrong if self._wrong is not None and self._step == 3 else self.observation_space.sample()
        return seen, self._reward, False, False, {}


class Leaving(ParallelEnv[str, Any, Any]):
    """A long and a short agent: they see and do different things, and the short one leaves after two steps."""

    metadata = {"name": "leaving_v0"}  # noqa: RUF012 (PettingZoo declares it so)
    render_mode = None
    possible_agents = ["long", "short"]  # noqa: RUF012
    max_cycles = 6

    def __init__(self, cut: bool = False, has_state: bool = True) -> None:
        self._cut, self._has_state = cut, has_state
        self._seen = {"long": spaces.Box(-9, 99, (3,), np.float32), "short": spaces.Discrete(2)}
        self._done = {"long": spaces.Discrete(4), "short": spaces.Discrete(2, start=5)}
        self.log: list[dict[str, Any]] = []

    def observation_space(self, agent: str) -> Any:
        return self._seen[agent]

    def action_space(self, agent: str) -> Any:
        return self._done[agent]

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self._step = list(self.possible_agents), 0
        return self._shown(), {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        assert set(actions) == set(self.agents)
        assert all(self._done[agent].contains(action) for agent, action in actions.items()), actions
        self.log.append(dict(actions))
        self._step += 1
        shown, agents = self._shown(), self.agents
        over = self._step == 4
        terminated = {agent: (agent == "short" and self._step == 2) or (over and not self._cut) for agent in agents}
        truncated = dict.fromkeys(agents, over and self._cut)
        self.agents = [agent for agent in agents if not terminated[agent] and not truncated[agent]]
        reward = {"long": 1.0, "short": 10.0}
        return shown, {agent: reward[agent] for agent in agents}, terminated, truncated, {agent: {} for agent in agents}

    def state(self) -> Any:
        if not self._has_state:
            raise NotImplementedError
        return np.full((2, 2), self._step, np.float32)

    def _shown(self) -> Any:
        shown = {"long": np.array([self._step, 1, 2], np.float32), "short": np.int64(self._step % 2)}
        return {agent: shown[agent] for agent in self.agents}


class Nim(AECEnv[str, Any, Any]):
    """Two take one or two of five matches in turns; who takes the last one wins. One match leaves one action."""

    metadata = {"name": "nim_v0", "is_parallelizable": False}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = ["first", "second"]

    def observation_space(self, agent: str) -> Any:
        return spaces.Dict({"observation": spaces.Box(0, 5, (1,), np.float32), "action_mask": spaces.MultiBinary(2)})

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def observe(self, agent: str) -> Any:
        mask = np.array([1, self._left >= 2], np.int8) if agent == self.agent_selection else np.zeros(2, np.int8)
        return {"observation": np.array([self._left], np.float32), "action_mask": mask}

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self._left, self.agents, self.agent_selection = 5, list(self.possible_agents), "first"
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}

    def step(self, action: Any) -> None:
        if self.terminations[self.agent_selection]:
            self._was_dead_step(action)
            return
        self._clear_rewards()
        agent = self.agent_selection
        other = self.possible_agents[1 - self.possible_agents.index(agent)]
        self._left -= int(action) + 1
        self.agent_selection = other
        if self._left == 0:
            self.rewards = {agent: 1.0, other: -1.0}
            self.terminations = dict.fromkeys(self.agents, True)
        self._accumulate_rewards()
