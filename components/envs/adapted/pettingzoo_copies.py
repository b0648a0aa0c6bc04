"""PettingZoo environments of both interfaces as an `Env` (extra `pettingzoo`): B copies, A possible agents.

All agents have equal fields. Shorter observations are padded with zeros at the end. If an agent has fewer actions, the
others are masked; surplus entries of a Box action are ignored. An agent that is not in the game has zero observations.
Its only available action is the first, and its action is ignored, as for dead units of the StarCraft challenge.
"""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils.conversions import aec_to_parallel

from components.envs.adapted.copies import FieldEnv, checked_mask, limit_of, number, seed_of
from components.envs.adapted.spaces import Does, Part, does_of, flat_part, flat_size, is_flat, parts_of, spec_of
from components.experience import FieldSpec
from orchestra import UsageError

_MASK, _SEEN = "action_mask", "observation"


class _Step:
    """The results of a step by agent, for the agents that were in the game before the step."""

    def __init__(self, seen: Any, rewards: Any, terminated: Any, truncated: Any, infos: Any) -> None:
        self.seen, self.rewards, self.infos = dict(seen), dict(rewards), dict(infos)
        self.terminated, self.truncated = dict(terminated), dict(truncated)


class _Together:
    """A game in which all agents act at once."""

    def __init__(self, env: Any) -> None:
        self.env = env

    @property
    def acting(self) -> list[str]:
        """The agents that act next."""
        return list(self.env.agents)

    def reset(self, seed: int | None) -> _Step:
        seen, infos = self.env.reset(seed=seed)
        return _Step(seen, {}, {}, {}, infos)

    def step(self, actions: dict[str, Any]) -> _Step:
        return _Step(*self.env.step(actions))


class _InTurns:
    """A game in which one agent acts at a time: a step is the turn of one agent."""

    def __init__(self, env: Any) -> None:
        self.env = env

    @property
    def acting(self) -> list[str]:
        return [self.env.agent_selection] if self.env.agents else []

    def reset(self, seed: int | None) -> _Step:
        self.env.reset(seed=seed)
        return self._shown()

    def step(self, actions: dict[str, Any]) -> _Step:
        env = self.env
        env.step(actions[env.agent_selection])
        shown = self._shown()
        while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            env.step(None)  # the agent leaves the game
        return shown

    def _shown(self) -> _Step:
        env = self.env
        seen = {agent: env.observe(agent) for agent in env.agents}
        return _Step(seen, env.rewards, env.terminations, env.truncations, env.infos)


class PettingZooCopies(FieldEnv):
    """B copies of an environment of several agents.

    In a parallel game, all agents make a step together. In a turn-based game (an `AECEnv` not declared as
    parallelizable), a step is one agent's turn, and the others wait as if they were not in the game. The field `alive`
    (A,) marks the agents that act in a frame, or would act if the episode had not been cut there. `state` is the result
    of `env.state()`, or else the concatenated flat observations of all agents. An episode is terminated unless an agent
    was truncated, and not terminated, in its last step.

    Args:
        make: makes one environment.
        n_envs: B.
        seed: of all copies; the first reset of copy i gets `seed_of(seed, i)`.
        episode_limit: steps after which an episode is cut; by default those of its `max_cycles`.
        rewards: "each" gives every agent its own reward; "mean" or "sum" gives the team one reward. With a team reward,
            discrete actions and flat observations, the fields are those of a team only, without `alive`.
        name: of the environment, if its metadata have none.

    Raises:
        UsageError: a space is not supported, padding cannot make the agents' spaces equal, the environment has no
            `possible_agents`, or it declares no limit and none is given.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        n_envs: int = 1,
        *,
        seed: int = 0,
        episode_limit: int | None = None,
        rewards: Literal["each", "mean", "sum"] = "each",
        name: str = "pettingzoo",
    ) -> None:
        self._games = [_game_of(make(), name) for _ in range(n_envs)]
        self.n_envs = n_envs
        env = self._games[0].env
        own_name = str((getattr(env, "metadata", None) or {}).get("name") or name)
        self._agents = list(env.possible_agents)
        turns = len(self._agents) if isinstance(self._games[0], _InTurns) else 1
        self._limit = limit_of(_declared_limit(env, turns), episode_limit, own_name)
        seen = {agent: _without_mask(env.observation_space(agent)) for agent in self._agents}
        self._parts = _parts_of_all(seen, own_name)
        self._does, self._of_agents = _does_of_all({a: env.action_space(a) for a in self._agents}, own_name)
        self._seeds: list[int | None] = [seed_of(seed, b) for b in range(n_envs)]
        self._rewards = rewards
        parts = self._parts[self._agents[0]]
        state_size, self._own_state = _state_of(env, parts, len(self._agents))
        alive = () if rewards != "each" and is_flat(parts) and self._does.masked and state_size else (_ALIVE,)
        more = (*alive, _REWARD_OF_EACH) if rewards == "each" else alive
        self.spec = spec_of(own_name, len(self._agents), self._limit, parts, self._does, state_size, more)
        self._has_state = bool(state_size)
        self._allocate()
        self._alive = self._arrays.get("alive", np.zeros((n_envs, len(self._agents)), np.bool_))

    def reset(self, which: NDArray[np.bool_] | None = None) -> None:
        for b in range(self.n_envs) if which is None else np.flatnonzero(which).tolist():
            game = self._games[b]
            shown = game.reset(self._seeds[b])
            self._seeds[b] = None
            self.reward[b] = 0.0
            self.terminated[b] = self.truncated[b] = self.won[b] = self._over[b] = False
            self._t[b] = 0
            self._show(b, shown, set(game.acting))
        self._check_finite()

    def step(self, actions: NDArray[Any]) -> None:
        everything = np.arange(self.n_envs)
        self._does.check(actions, (self.n_envs, len(self._agents)))
        self._check_playing(everything)
        if self._does.masked:
            self._check_available(actions, everything)
        self._t += 1
        for b, game in enumerate(self._games):
            acting = set(game.acting)
            chosen = {
                agent: self._of_agents[agent](actions[b, i]) for i, agent in enumerate(self._agents) if agent in acting
            }
            self._take(b, game, game.step(chosen))
        self._check_finite()
        self._over[:] = self.terminated | self.truncated

    def close(self) -> None:
        for game in self._games:
            game.env.close()

    def _take(self, b: int, game: "_Together | _InTurns", brought: _Step) -> None:
        earned = [number(brought.rewards.get(agent, 0.0)) for agent in self._agents]
        if self._rewards == "each":
            self.reward[b] = earned
        else:
            self.reward[b] = sum(earned) / (len(earned) if self._rewards == "mean" else 1)
        alive = set(game.acting)
        over = not game.env.agents
        if over:
            cut = {agent for agent, truncated in brought.truncated.items() if truncated}
            alive = {agent for agent in cut if not brought.terminated.get(agent, False)}
        self.terminated[b] = over and not alive
        self.truncated[b] = (over and bool(alive)) or (not over and bool(self._t[b] >= self._limit))
        self._show(b, brought, alive)

    def _show(self, b: int, shown: _Step, alive: set[str]) -> None:
        for i, agent in enumerate(self._agents):
            seen, mask = shown.seen.get(agent), shown.infos.get(agent, {}).get(_MASK)
            if isinstance(seen, dict) and _MASK in seen:
                seen, mask = seen[_SEEN], seen[_MASK]
            for part in self._parts[agent]:
                self._arrays[part.name][b, i] = 0 if seen is None else part.value(seen, part.field.shape)
            self._alive[b, i] = agent in alive
            if self._does.masked:
                self.available[b, i] = False
                n = self._n_actions(agent)
                if agent not in alive:
                    self.available[b, i, 0] = True
                else:
                    self.available[b, i, :n] = True if mask is None else checked_mask(mask, (n,))
        if self._has_state:
            state = self._games[b].env.state() if self._own_state else self.obs[b]
            array = np.asarray(state, np.float32).reshape(-1)
            if array.shape != self.state[b].shape or (self._own_state and not np.isfinite(array).all()):
                raise ValueError(f"state: expected finite numbers of shape {self.state[b].shape}, got {array}")
            self.state[b] = array

    def _n_actions(self, agent: str) -> int:
        return int(self._games[0].env.action_space(agent).n)


_ALIVE = ("alive", FieldSpec((), "bool", "frame", agents=True))
_REWARD_OF_EACH = ("reward", FieldSpec((), "float32", agents=True, finite=True))


def _game_of(env: Any, whose: str) -> "_Together | _InTurns":
    if not getattr(env, "possible_agents", None):
        raise UsageError(f"{whose} has no possible_agents, so that the number of its agents is not known")
    if isinstance(env, ParallelEnv):
        return _Together(env)
    if not isinstance(env, AECEnv):
        raise UsageError(f"{whose} is {type(env).__name__}, neither a ParallelEnv nor an AECEnv of PettingZoo")
    if env.metadata.get("is_parallelizable", False):
        return _Together(aec_to_parallel(env))
    return _InTurns(env)


def _declared_limit(env: Any, turns: int) -> int | None:
    for each in (env, env.unwrapped):
        cycles = getattr(each, "max_cycles", None)
        if isinstance(cycles, int):
            return cycles * turns
    return None


def _without_mask(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """Return an observation space without the action mask that it may contain."""
    if isinstance(space, spaces.Dict) and _MASK in space.spaces and _SEEN in space.spaces:
        return space.spaces[_SEEN]
    return space


def _parts_of_all(seen: dict[str, spaces.Space[Any]], whose: str) -> dict[str, tuple[Part, ...]]:
    """Return the observation fields of each agent: equal for all agents, padded where their sizes differ."""
    first, *others = seen.values()
    if all(other == first for other in others):
        return dict.fromkeys(seen, parts_of(first, whose))
    size = max(flat_size(space, whose) for space in seen.values())
    return {agent: (flat_part(space, whose, size),) for agent, space in seen.items()}


def _does_of_all(
    done: dict[str, spaces.Space[Any]], whose: str
) -> tuple[Does, dict[str, Callable[[NDArray[Any]], Any]]]:
    """Return the common action field, and for each agent the function that decodes entries into its own actions.

    Raises:
        UsageError: a space is not supported, or one cannot be padded to another.
    """
    each = {agent: does_of(space, f"{whose}, {agent}") for agent, space in done.items()}
    first, *others = each.values()
    if all(other.field == first.field for other in others):
        return first, {agent: does.decode for agent, does in each.items()}
    kinds = sorted({type(space).__name__ for space in done.values()})
    if kinds == ["Discrete"]:
        n = max(does.n_actions for does in each.values())
        field = FieldSpec((), "int64", agents=True, n_values=(n,))
        return Does(field, n, first.decode), {agent: does.decode for agent, does in each.items()}
    if kinds != ["Box"]:
        raise UsageError(
            f"{whose}: the agents' actions differ, {', '.join(f'{agent}: {space}' for agent, space in done.items())}; "
            "all must be equal, or all a Discrete, or all a Box"
        )
    size = max(does.field.shape[0] for does in each.values())
    field = FieldSpec((size,), "float32", agents=True, finite=True)

    def own(does: Does) -> Callable[[NDArray[Any]], Any]:
        return lambda actions: does.decode(actions[..., : does.field.shape[0]])

    return Does(field, 1, first.decode), {agent: own(does) for agent, does in each.items()}


def _state_of(env: Any, parts: tuple[Part, ...], n_agents: int) -> tuple[int, bool]:
    """Return the size of the state, 0 for none, and whether the environment provides the state itself."""
    env.reset(seed=0)
    try:
        return int(np.asarray(env.state()).size), True
    except (NotImplementedError, AttributeError):
        return (parts[0].field.shape[0] * n_agents if is_flat(parts) else 0), False
