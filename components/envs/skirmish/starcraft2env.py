"""One battle with the interface of SMAC's own class, for code that was written for that class."""

from collections.abc import Mapping, MutableSequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .assigning import assign_capabilities, assign_units
from .battles import Battles
from .heuristic import choose_target, direction, heals
from .kernel import constants
from .map_registry import DIFFICULTIES
from .multi_agent_env import MultiAgentEnv
from .options import Edition, Features, Rewards, shield_bit
from .rendering import Image, image_of, text_of
from .scenario_file import scenario_named
from .scenarios import Scenario
from .size_queries import SizeQueries
from .unit_command import UnitCommand, move, stop, strike
from .unit_queries import UnitQueries
from .units import Ruleset

NOTHING: Mapping[str, Any] = MappingProxyType({})
LEAST_LOOKS = 3
"""The least number of directions. With fewer, a cone would be half of the plane or more."""


class StarCraft2Env(UnitQueries, SizeQueries, MultiAgentEnv):
    """`smac.env.StarCraft2Env`, simulated by `Battles`: same names, same arguments, same results.

    `terminated` here covers every end of an episode, its limit included; `Battles` distinguishes the two. Arguments
    about the game's window, version and replays are accepted and have no effect. With `obs_timestep_number`, the
    length of an observation equals `get_obs_size`, which it does not in SMAC.

    SMAC's class does not have the arguments below.

    Args:
        obs_own_pos: whether agents see their own position; by default, only on the maps of SMACv2.
        obs_starcraft, fully_observable, action_mask, prob_obs_enemy, edition: see `Features`.
        conic_fov, num_fov_actions: whether agents see only a cone, and to how many directions they can turn it.
        fov_as_published: whether the cone also extends to the opposite side, as in SMACv2's own code.
        divisor: on the maps of SMACv2, rewards are scaled by the value of the enemies of this episode (`episode`), or
            of the first episode (`first`), as in the original.
        ruleset: see `Battles`.
        start_jitter: see `Battles`.
        scenario: a scenario to use instead of that of `map_name`.

    Raises:
        ValueError: the map is unknown, and the message lists the known scenarios; or another argument is invalid.
    """

    n_actions_move = 4

    def __init__(
        self,
        map_name: str = "8m",
        step_mul: int = 8,
        move_amount: float = 2,
        difficulty: str = "7",
        game_version: str | None = None,
        seed: int | None = None,
        continuing_episode: bool = False,
        obs_all_health: bool = True,
        obs_own_health: bool = True,
        obs_last_action: bool = False,
        obs_pathing_grid: bool = False,
        obs_terrain_height: bool = False,
        obs_instead_of_state: bool = False,
        obs_timestep_number: bool = False,
        state_last_action: bool = True,
        state_timestep_number: bool = False,
        reward_sparse: bool = False,
        reward_only_positive: bool = True,
        reward_death_value: float = 10,
        reward_win: float = 200,
        reward_defeat: float = 0,
        reward_negative_scale: float = 0.5,
        reward_scale: bool = True,
        reward_scale_rate: float = 20,
        replay_dir: str = "",
        replay_prefix: str = "",
        window_size_x: int = 1920,
        window_size_y: int = 1200,
        heuristic_ai: bool = False,
        heuristic_rest: bool = False,
        debug: bool = False,
        *,
        obs_own_pos: bool | None = None,
        obs_starcraft: bool = True,
        fully_observable: bool = False,
        action_mask: bool = True,
        prob_obs_enemy: float = 1.0,
        edition: Edition = "2022",
        conic_fov: bool = False,
        num_fov_actions: int = 12,
        fov_as_published: bool = False,
        divisor: Literal["episode", "first"] = "episode",
        ruleset: Ruleset = "lotv",
        start_jitter: float = 0.0,
        scenario: Scenario | None = None,
    ) -> None:
        self.map_name = map_name
        self.game_version = game_version
        self.continuing_episode = continuing_episode
        self.debug = debug
        self.window_size = (window_size_x, window_size_y)
        self.replay_dir = replay_dir
        self.replay_prefix = replay_prefix
        self.obs_all_health = obs_all_health
        self.obs_own_health = obs_own_health or obs_all_health
        self.obs_last_action = obs_last_action
        self.obs_pathing_grid = obs_pathing_grid
        self.obs_terrain_height = obs_terrain_height
        self.obs_instead_of_state = obs_instead_of_state
        self.obs_timestep_number = obs_timestep_number
        self.obs_starcraft = obs_starcraft
        self.state_last_action = state_last_action
        self.state_timestep_number = state_timestep_number
        self.reward_sparse = reward_sparse
        self.reward_only_positive = reward_only_positive
        self.reward_death_value = reward_death_value
        self.reward_win = reward_win
        self.reward_defeat = reward_defeat
        self.reward_negative_scale = reward_negative_scale
        self.reward_scale = reward_scale
        self.reward_scale_rate = reward_scale_rate
        self.heuristic_ai = heuristic_ai
        self.heuristic_rest = heuristic_rest
        self._move_amount = move_amount
        if difficulty not in DIFFICULTIES:
            raise ValueError(f"difficulty is {difficulty!r}, must be one of {', '.join(DIFFICULTIES)}")
        self.difficulty = difficulty
        self._features = Features(
            obs_all_health=obs_all_health,
            obs_own_health=obs_own_health,
            obs_last_action=obs_last_action,
            obs_pathing_grid=obs_pathing_grid,
            obs_terrain_height=obs_terrain_height,
            obs_timestep_number=obs_timestep_number,
            obs_instead_of_state=obs_instead_of_state,
            obs_own_position=obs_own_pos,
            obs_starcraft=obs_starcraft,
            fully_observable=fully_observable,
            action_mask=action_mask,
            prob_obs_enemy=prob_obs_enemy,
            edition=edition,
            state_last_action=state_last_action,
            state_timestep_number=state_timestep_number,
        )
        if divisor not in ("episode", "first"):
            raise ValueError(f"divisor is {divisor!r}, must be 'episode' or 'first'")
        rewards = Rewards(
            sparse=reward_sparse,
            only_positive=reward_only_positive,
            death_value=reward_death_value,
            win=reward_win,
            defeat=reward_defeat,
            negative_scale=reward_negative_scale,
            scale=reward_scale,
            scale_rate=reward_scale_rate,
            fixed_divisor=divisor == "first",
        )
        scenario = scenario or scenario_named(map_name)
        if conic_fov:
            if num_fov_actions < LEAST_LOOKS:
                raise ValueError(f"num_fov_actions is {num_fov_actions}, must be at least {LEAST_LOOKS}")
            scenario = replace(scenario, looks=num_fov_actions, cone_as_published=fov_as_published)
        self._make_skirmish = partial(
            Battles,
            scenario,
            ruleset=ruleset,
            start_jitter=start_jitter,
            features=self._features,
            rewards=rewards,
            step_mul=step_mul,
            move_amount=move_amount,
            difficulty=DIFFICULTIES[difficulty],
        )
        self._seed = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed
        self.skirmish = self._make_skirmish(seed=self._seed)
        self._scenario = self.skirmish.scenario
        self.obs_own_pos = self._features.shows_own_position(self._scenario)
        self.n_agents = len(self._scenario.allies)
        self.n_enemies = len(self._scenario.enemies)
        self.n_actions = self.skirmish.n_actions
        self.conic_fov, self.n_fov_actions = conic_fov, self._scenario.looks
        self.n_actions_no_attack = self._scenario.first_target
        self.episode_limit = self._scenario.limit
        self.map_type = self._scenario.map_type
        self.shield_bits_ally = shield_bit(self._scenario, enemies=False)
        self.shield_bits_enemy = shield_bit(self._scenario, enemies=True)
        self.unit_type_bits = len(self._scenario.ally_types)
        self.ally_state_attr_names = self._ally_state_names()
        self.enemy_state_attr_names = self._enemy_state_names()
        self._name_units()

        self.battles_game = 0
        self.battles_won = 0
        self.timeouts = 0
        self.force_restarts = 0
        self.last_action = np.zeros((self.n_agents, self.n_actions))
        self.death_tracker_ally = np.zeros(self.n_agents)
        self.death_tracker_enemy = np.zeros(self.n_enemies)
        self.heuristic_targets: list[int | None] = [None] * self.n_agents
        self.win_counted = False
        self.defeat_counted = False
        self.reward = 0.0
        """The reward of the last step."""
        self.last_stats: dict[str, float] | None = None
        """Always None, as in SMAC."""
        self.renderer: object | None = None
        """Always None: `render` keeps nothing open."""
        self._before = None
        # Code written for SMAC reads these names, although they are private there, too.
        self._episode_count = 0
        self._episode_steps = 0
        self._total_steps = 0

    # --- Playing ----------------------------------------------------------------------------------------------------

    def reset(
        self, episode_config: Mapping[str, Mapping[str, Any]] = NOTHING
    ) -> tuple[list[NDArray[np.float32]], NDArray[np.float32]]:
        """Start an episode; return the results of `get_obs` and `get_state`.

        Args:
            episode_config: the output of SMACv2's distributions, if armies are drawn: `team_gen` with `ally_team` and
                `enemy_team`, and `item` of `ally_start_positions`, `enemy_start_positions`, `attack`, `health` and
                `enemy_mask`. Missing parts are drawn.

        Raises:
            ValueError: the configuration does not fit the scenario.
        """
        if episode_config:
            assign_units(self.skirmish, episode_config)
        self.skirmish.reset()
        if episode_config:
            assign_capabilities(self.skirmish, episode_config)
        self.last_action[:] = 0.0
        self.death_tracker_ally[:] = 0.0
        self.death_tracker_enemy[:] = 0.0
        self.heuristic_targets = [None] * self.n_agents
        self._before = None
        self._episode_steps = 0
        self.win_counted = self.defeat_counted = False
        return self.get_obs(), self.get_state()

    def step(self, actions: MutableSequence[Any]) -> tuple[float, bool, dict[str, Any]]:
        """Make one step; return the reward, whether the episode ended, and SMAC's `info`.

        Raises:
            AssertionError: an action is not available; no step is made.
            ValueError: the number of actions is wrong, or the episode is over.
        """
        chosen = np.array([[int(action) for action in actions]], dtype=np.int64)
        if chosen.shape[1] != self.n_agents:
            raise ValueError(f"{chosen.shape[1]} actions were given, {self.map_name} has {self.n_agents} agents")
        self.last_action = np.zeros((self.n_agents, self.n_actions))
        before = self.skirmish.units[0].copy()
        if self.heuristic_ai:
            for i in range(self.n_agents):
                chosen[0, i] = actions[i] = self.get_agent_action_heuristic(i, chosen[0, i])[1]
            self.skirmish.step_unchecked(chosen)
        else:
            for i, action in enumerate(chosen[0].tolist()):
                legal = 0 <= action < self.n_actions and self.skirmish.available[0, i, action]
                assert legal, f"Agent {i} cannot perform action {action}"
            self.skirmish.step(chosen)
        self._before = before
        self.last_action[np.arange(self.n_agents), chosen[0]] = 1.0

        health = self.skirmish.units["health"][0]
        self.death_tracker_ally[:] = health[: self.n_agents] <= 0.0
        self.death_tracker_enemy[:] = health[self.n_agents :] <= 0.0
        won, timeout = bool(self.skirmish.won[0]), bool(self.skirmish.truncated[0])
        ended = timeout or bool(self.skirmish.terminated[0])
        self._episode_steps += 1
        self._total_steps += 1
        self._episode_count += ended
        self.battles_game += ended
        self.battles_won += won
        self.timeouts += timeout
        self.win_counted = won
        self.defeat_counted = ended and self.update_units() == -1
        self.reward = float(self.skirmish.reward[0])
        info: dict[str, Any] = {
            "battle_won": won,
            "dead_allies": int(self.death_tracker_ally.sum()),
            "dead_enemies": int(self.death_tracker_enemy.sum()),
        }
        if timeout and self.continuing_episode:
            info["episode_limit"] = True
        return self.reward, ended, info

    @property
    def max_reward(self) -> float:
        """The unscaled return of a win over the present enemies, if none of them recovers health or shield."""
        kinds = self.skirmish.types_in(0)[self.n_agents :]
        pool = sum(kind.health + kind.shield for kind in kinds)
        return pool + self.reward_death_value * self.n_enemies + self.reward_win

    def get_agent_action(self, a_id: int, action: int) -> UnitCommand | None:
        """Return the order that an action stands for; None for no-op and for turning the cone of vision.

        Raises:
            AssertionError: the agent cannot take the action.
        """
        legal = 0 <= action < self.n_actions and self.skirmish.available[0, a_id, action]
        assert legal, f"Agent {a_id} cannot perform action {action}"
        return self._command(a_id, action)

    def get_agent_action_heuristic(self, a_id: int, action: int) -> tuple[UnitCommand | None, int]:
        """Return `heuristic_ai`'s order to an agent, and the action that it stands for; `action` is ignored."""
        unit = self.get_unit_by_id(a_id)
        others = self.agents if heals(unit) else self.enemies
        target = choose_target(unit, others, self.heuristic_targets[a_id]) if unit.health > 0.0 else None
        self.heuristic_targets[a_id] = target
        if target is None:
            return None, constants.NO_OP
        chosen = self.n_actions_no_attack + target
        if self.heuristic_rest and not self.skirmish.available[0, a_id, chosen]:
            chosen = direction(unit, others[target])
        return self._command(a_id, chosen), chosen

    def _command(self, a_id: int, action: int) -> UnitCommand | None:
        unit = self.get_unit_by_id(a_id)
        if action == constants.NO_OP:
            return None
        if action == constants.STOP:
            return stop(unit)
        if action < constants.FIRST_TARGET:
            return move(unit, action, self._move_amount)
        if action < self.n_actions_no_attack:
            return None  # turning the cone of vision is not an order
        return strike(unit, (self.agents if heals(unit) else self.enemies)[action - self.n_actions_no_attack])

    # --- Observations -----------------------------------------------------------------------------------------------

    def get_obs(self) -> list[NDArray[np.float32]]:
        """Return one observation per agent."""
        return [self.get_obs_agent(i) for i in range(self.n_agents)]

    def get_obs_agent(self, agent_id: int) -> NDArray[np.float32]:
        """Return the observation of one agent, (O,)."""
        seen: NDArray[np.float32] = self.skirmish.obs[0, agent_id].copy()
        return seen

    def get_state(self) -> NDArray[np.float32]:
        """Return the global state, (S,), which only the critic sees."""
        state: NDArray[np.float32] = self.skirmish.state[0].copy()
        return state

    def get_avail_actions(self) -> list[list[int]]:
        """Return, per agent, 1 for each action it may take and 0 for the others."""
        return [self.get_avail_agent_actions(i) for i in range(self.n_agents)]

    def get_avail_agent_actions(self, agent_id: int) -> list[int]:
        """Return 1 for each action the agent may take and 0 for the others."""
        available: list[int] = self.skirmish.available[0, agent_id].astype(int).tolist()
        return available

    # --- Facts --------------------------------------------------------------------------------------------------------

    def get_env_info(self) -> dict[str, Any]:
        """Return the sizes and names that learning code reads."""
        return {
            "state_shape": self.get_state_size(),
            "obs_shape": self.get_obs_size(),
            "n_actions": self.n_actions,
            "n_agents": self.n_agents,
            "episode_limit": self.episode_limit,
            "agent_features": self.ally_state_attr_names,
            "enemy_features": self.enemy_state_attr_names,
        }

    def get_stats(self) -> dict[str, float]:
        """Return counts since the environment was created. `battles_draw` counts only the timeouts, as in SMAC."""
        return {
            "battles_won": self.battles_won,
            "battles_game": self.battles_game,
            "battles_draw": self.timeouts,
            "win_rate": self.battles_won / self.battles_game if self.battles_game else 0.0,
            "timeouts": self.timeouts,
            "restarts": self.force_restarts,
        }

    # --- The rest ---------------------------------------------------------------------------------------------------

    def seed(self, seed: int | None = None) -> int:
        """Return the seed; with an argument, restart from that seed at the next `reset`."""
        if seed is not None:
            self._seed = seed
            self.skirmish = self._make_skirmish(seed=seed)
        return self._seed

    def full_restart(self) -> None:
        """Restart from the seed at the next `reset`, and count a restart."""
        self.seed(self._seed)
        self.force_restarts += 1

    def render(self, mode: str = "human") -> Image | None:
        """Draw the battle.

        Args:
            mode: `rgb_array` for an image (512, 512, 3), uint8; `human` for a drawing on standard output, which must
                be a terminal with 24-bit colours, at least 64 columns wide.

        Raises:
            ValueError: the mode is unknown.
        """
        if mode == "rgb_array":
            return image_of(self.skirmish)
        if mode == "human":
            print(text_of(image_of(self.skirmish, cell=2)))
            return None
        raise ValueError(f"mode is {mode!r}, must be 'human' or 'rgb_array'")

    def save_replay(self) -> None:
        """Do nothing: there is no game to replay the episode."""

    def close(self) -> None:
        """Do nothing: the environment holds only memory."""
