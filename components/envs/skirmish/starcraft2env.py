"""One battle behind the interface of SMAC's own class, for code that was written for it."""

from collections.abc import MutableSequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.envs.skirmish.kernel import constants
from components.envs.skirmish.kernel.constants import CELLS, MIDDLE
from components.envs.skirmish.options import Features, Rewards, shield_bit
from components.envs.skirmish.scenario_file import scenario_named
from components.envs.skirmish.skirmish import Skirmish
from components.envs.skirmish.unit_view import UnitView, distance, view_of
from components.envs.skirmish.units import Ruleset, UnitType


def get_map_params(map_name: str) -> dict[str, Any]:
    """What SMAC's map registry says of a map.

    Raises:
        ValueError: there is no such map; the message lists those there are.
    """
    scenario = scenario_named(map_name)
    return {
        "n_agents": len(scenario.allies),
        "n_enemies": len(scenario.enemies),
        "limit": scenario.limit,
        "a_race": scenario.allies[0].race[0].upper(),
        "b_race": scenario.enemies[0].race[0].upper(),
        "unit_type_bits": len(scenario.ally_types),
        "map_type": scenario.map_type,
    }


DIFFICULTIES = {name: number for number, name in enumerate("123456789A", start=1)}
"""As SMAC writes them."""


class StarCraft2Env:
    """What `smac.env.StarCraft2Env` is, played by `Skirmish`: same names, same arguments, same answers.

    `terminated` means here that the episode ended in any way, its limit included; use `Skirmish` to tell them apart.
    Arguments about the game's window, version and replays are taken and change nothing. With
    `obs_timestep_number` an observation is as long as `get_obs_size` says, which in SMAC it is not.

    Raises:
        ValueError: there is no such map; the message lists those there are.
    """

    n_actions_no_attack = 6
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
        ruleset: Ruleset = "liberty",
        start_jitter: float = 0.0,
    ) -> None:
        self.map_name = map_name
        self.continuing_episode = continuing_episode
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
            state_last_action=state_last_action,
            state_timestep_number=state_timestep_number,
        )
        rewards = Rewards(
            sparse=reward_sparse,
            only_positive=reward_only_positive,
            death_value=reward_death_value,
            win=reward_win,
            defeat=reward_defeat,
            negative_scale=reward_negative_scale,
            scale=reward_scale,
            scale_rate=reward_scale_rate,
        )
        self._make_skirmish = partial(
            Skirmish,
            map_name,
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
        if self._scenario.draw is not None:
            raise ValueError(f"{map_name} draws armies for each episode; use Skirmish")

        self.n_agents = len(self._scenario.allies)
        self.n_enemies = len(self._scenario.enemies)
        self.n_actions = self.skirmish.spec.n_actions
        self.episode_limit = self._scenario.limit
        self.map_type = self._scenario.map_type
        self.shield_bits_ally = shield_bit(self._scenario, enemies=False)
        self.shield_bits_enemy = shield_bit(self._scenario, enemies=True)
        self.unit_type_bits = len(self._scenario.ally_types)
        self.max_reward = rewards.maximum(self._scenario)

        self.battles_game = 0
        self.battles_won = 0
        self.timeouts = 0
        self.force_restarts = 0
        self.last_action = np.zeros((self.n_agents, self.n_actions))
        self.death_tracker_ally = np.zeros(self.n_agents)
        self.death_tracker_enemy = np.zeros(self.n_enemies)
        self._heuristic_targets: list[int | None] = [None] * self.n_agents

    # --- Playing ----------------------------------------------------------------------------------------------------

    def reset(self) -> tuple[list[NDArray[np.float32]], NDArray[np.float32]]:
        """Start an episode; returns what `get_obs` and `get_state` do."""
        self.skirmish.reset()
        self.last_action[:] = 0.0
        self.death_tracker_ally[:] = 0.0
        self.death_tracker_enemy[:] = 0.0
        self._heuristic_targets = [None] * self.n_agents
        return self.get_obs(), self.get_state()

    def step(self, actions: MutableSequence[Any]) -> tuple[float, bool, dict[str, Any]]:
        """Make one step; returns the reward, whether the episode ended, and what SMAC's `info` holds.

        Raises:
            AssertionError: an action is not available; nothing has been stepped then.
            ValueError: the wrong number of actions, or the episode is over.
        """
        chosen = np.array([[int(action) for action in actions]], dtype=np.int64)
        if chosen.shape[1] != self.n_agents:
            raise ValueError(f"{chosen.shape[1]} actions were given, {self.map_name} has {self.n_agents} agents")
        self.last_action = np.zeros((self.n_agents, self.n_actions))
        if self.heuristic_ai:
            for i in range(self.n_agents):
                chosen[0, i] = actions[i] = self._heuristic_action(i)
            self.skirmish.step_unchecked(chosen)
        else:
            for i, action in enumerate(chosen[0].tolist()):
                legal = 0 <= action < self.n_actions and self.skirmish.available[0, i, action]
                assert legal, f"Agent {i} cannot perform action {action}"
            self.skirmish.step(chosen)
        self.last_action[np.arange(self.n_agents), chosen[0]] = 1.0

        health = self.skirmish.units["health"][0]
        self.death_tracker_ally[:] = health[: self.n_agents] <= 0.0
        self.death_tracker_enemy[:] = health[self.n_agents :] <= 0.0
        won, timeout = bool(self.skirmish.won[0]), bool(self.skirmish.truncated[0])
        ended = timeout or bool(self.skirmish.terminated[0])
        self.battles_game += ended
        self.battles_won += won
        self.timeouts += timeout
        info: dict[str, Any] = {
            "battle_won": won,
            "dead_allies": int(self.death_tracker_ally.sum()),
            "dead_enemies": int(self.death_tracker_enemy.sum()),
        }
        if timeout and self.continuing_episode:
            info["episode_limit"] = True
        return float(self.skirmish.reward[0]), ended, info

    def _heuristic_action(self, agent_id: int) -> int:
        """Attack the enemy that was nearest when the last target died; or heal the nearest friend."""
        unit = self.get_unit_by_id(agent_id)
        if unit.health <= 0.0:
            return constants.NO_OP
        heals = self._type(unit).healing > 0.0
        others = self.agents if heals else self.enemies
        target = self._heuristic_targets[agent_id]
        if target is None or not self._is_task(unit, others[target]):
            tasks = [k for k, other in others.items() if self._is_task(unit, other)]
            if not tasks:
                self._heuristic_targets[agent_id] = None
                return constants.STOP
            target = min(tasks, key=lambda k: distance(unit, others[k]))
            self._heuristic_targets[agent_id] = target
        action = constants.FIRST_TARGET + target
        if self.heuristic_rest and not self.skirmish.available[0, agent_id, action]:
            dx, dy = others[target].pos.x - unit.pos.x, others[target].pos.y - unit.pos.y
            if abs(dx) > abs(dy):
                return constants.EAST if dx > 0.0 else constants.WEST
            return constants.NORTH if dy > 0.0 else constants.SOUTH
        return action

    def _is_task(self, unit: UnitView, other: UnitView) -> bool:
        """Whether the heuristic would have a unit attack another, or heal it."""
        mine, its = self._type(unit), self._type(other)
        if mine.healing > 0.0:
            return its.healing == 0.0 and 0.0 < other.health < other.health_max
        return other.health > 0.0 and (its.layer != "air" or mine.weapon.hits_air)

    # --- Observations -----------------------------------------------------------------------------------------------

    def get_obs(self) -> list[NDArray[np.float32]]:
        """One observation per agent."""
        return [self.get_obs_agent(i) for i in range(self.n_agents)]

    def get_obs_agent(self, agent_id: int) -> NDArray[np.float32]:
        """Return the observation of one agent, (O,)."""
        seen: NDArray[np.float32] = self.skirmish.obs[0, agent_id].copy()
        return seen

    def get_state(self) -> NDArray[np.float32]:
        """(S,): what only the critic sees."""
        state: NDArray[np.float32] = self.skirmish.state[0].copy()
        return state

    def get_state_dict(self) -> dict[str, Any]:
        """The state's parts: `allies` (A, …), `enemies` (E, …), and `last_action` and `timestep` where enabled."""
        sides: dict[str, Any] = {}
        units, kinds = self.skirmish.units[0], self.skirmish.kinds[0]
        for name, side, bits in (
            ("allies", slice(self.n_agents), self.shield_bits_ally),
            ("enemies", slice(self.n_agents, None), self.shield_bits_enemy),
        ):
            unit, kind = units[side], kinds[side]
            columns = [unit["health"] / kind["health"], (unit["x"] - MIDDLE) / CELLS, (unit["y"] - MIDDLE) / CELLS]
            if name == "allies":
                cooldown = np.maximum(unit["cooldown"], 0.0) / kind["full_cooldown"]
                columns.insert(1, np.where(kind["healing"] > 0.0, unit["energy"] / constants.FULL_ENERGY, cooldown))
            if bits:
                columns.append(unit["shield"] / kind["shield"])
            types = kind["type_bit"][:, None] == np.arange(self.unit_type_bits)
            alive = unit["health"][:, None] > 0.0
            sides[name] = np.where(alive, np.column_stack([*columns, types]), 0.0)
        if self._features.state_last_action:
            sides["last_action"] = self.last_action
        if self._features.state_timestep_number:
            sides["timestep"] = int(self.skirmish.battles["steps"][0]) / self.episode_limit
        return sides

    def get_visibility_matrix(self) -> NDArray[np.bool_]:
        """Return the visibility matrix (A, A + E); an agent does not see itself."""
        units = self.skirmish.units[0]
        dx = units["x"][: self.n_agents, None] - units["x"][None, :]
        dy = units["y"][: self.n_agents, None] - units["y"][None, :]
        alive = units["health"] > 0.0
        sight = self.skirmish.kinds["sight"][0, : self.n_agents]
        seen = (np.sqrt(dx * dx + dy * dy) < sight[:, None]) & alive[: self.n_agents, None] & alive[None, :]
        seen[np.arange(self.n_agents), np.arange(self.n_agents)] = False
        return np.asarray(seen, dtype=np.bool_)

    def get_avail_actions(self) -> list[list[int]]:
        """Per agent, 1 for each action it may take and 0 for the others."""
        return [self.get_avail_agent_actions(i) for i in range(self.n_agents)]

    def get_avail_agent_actions(self, agent_id: int) -> list[int]:
        """1 for each action the agent may take and 0 for the others."""
        available: list[int] = self.skirmish.available[0, agent_id].astype(int).tolist()
        return available

    # --- Sizes ------------------------------------------------------------------------------------------------------

    def get_obs_size(self) -> int:
        """O."""
        return self.skirmish.spec.obs_size

    def get_state_size(self) -> int:
        """S."""
        return self.skirmish.spec.state_size

    def get_total_actions(self) -> int:
        """U."""
        return self.n_actions

    def get_obs_move_feats_size(self) -> int:
        """Columns about the ground around an agent."""
        return self._features.move_size()

    def get_obs_enemy_feats_size(self) -> tuple[int, int]:
        """Enemies, and columns about each."""
        return self._features.enemy_shape(self._scenario)

    def get_obs_ally_feats_size(self) -> tuple[int, int]:
        """Friends, and columns about each."""
        return self._features.ally_shape(self._scenario)

    def get_obs_own_feats_size(self) -> int:
        """Columns about the agent itself."""
        return self._features.own_size(self._scenario)

    def get_ally_num_attributes(self) -> int:
        """Columns of an ally's row of the state."""
        return len(self._ally_state_names())

    def get_enemy_num_attributes(self) -> int:
        """Columns of an enemy's row of the state."""
        return len(self._enemy_state_names())

    def _ally_state_names(self) -> list[str]:
        return ["health", "energy/cooldown", "rel_x", "rel_y", *self._late_names(self.shield_bits_ally)]

    def _enemy_state_names(self) -> list[str]:
        return ["health", "rel_x", "rel_y", *self._late_names(self.shield_bits_enemy)]

    def _late_names(self, shield_bits: int) -> list[str]:
        return ["shield"] * shield_bits + [f"type_{k}" for k in range(self.unit_type_bits)]

    def get_env_info(self) -> dict[str, Any]:
        """Sizes and names, as learning code reads them."""
        return {
            "state_shape": self.get_state_size(),
            "obs_shape": self.get_obs_size(),
            "n_actions": self.n_actions,
            "n_agents": self.n_agents,
            "episode_limit": self.episode_limit,
            "agent_features": self._ally_state_names(),
            "enemy_features": self._enemy_state_names(),
        }

    def get_stats(self) -> dict[str, float]:
        """Counts since the environment was made. `battles_draw` are the timeouts only, as in SMAC."""
        return {
            "battles_won": self.battles_won,
            "battles_game": self.battles_game,
            "battles_draw": self.timeouts,
            "win_rate": self.battles_won / self.battles_game if self.battles_game else 0.0,
            "timeouts": self.timeouts,
            "restarts": self.force_restarts,
        }

    # --- Units ------------------------------------------------------------------------------------------------------

    @property
    def agents(self) -> dict[int, UnitView]:
        """The allies by agent number."""
        return {i: view_of(self.skirmish, i) for i in range(self.n_agents)}

    @property
    def enemies(self) -> dict[int, UnitView]:
        """The enemies by the number that attack actions count from."""
        return {e: view_of(self.skirmish, self.n_agents + e) for e in range(self.n_enemies)}

    def get_unit_by_id(self, a_id: int) -> UnitView:
        """The unit of an agent."""
        return view_of(self.skirmish, a_id)

    def get_unit_types(self) -> list[int]:
        """The enemies' unit types."""
        return [unit.type_id for unit in self._scenario.enemies]

    def unit_shoot_range(self, agent_id: int) -> float:
        """How far away an attack may be ordered."""
        return float(self.skirmish.kinds["shoot"][0, agent_id])

    def unit_sight_range(self, agent_id: int) -> float:
        """How near others must be to be seen."""
        return float(self.skirmish.kinds["sight"][0, agent_id])

    def unit_max_cooldown(self, unit: UnitView) -> float:
        """What its remaining cooldown is divided by."""
        return self._type(unit).full_cooldown

    def unit_max_shield(self, unit: UnitView) -> float:
        """What its shield is divided by."""
        return self._type(unit).shield

    def can_move(self, unit: UnitView, direction: int) -> bool:
        """Whether the next cell in a direction (0 north, 1 east, 2 south, 3 west) can be walked on."""
        probe = self._move_amount / 2.0
        dx, dy = ((0.0, probe), (probe, 0.0), (0.0, -probe), (-probe, 0.0))[direction]
        x, y = int(unit.pos.x + dx), int(unit.pos.y + dy)
        cells = self._scenario.terrain.walkable()
        return 0 <= x < CELLS and 0 <= y < CELLS and bool(cells[x, y])

    def _type(self, unit: UnitView) -> UnitType:
        return next(kind for kind in self._scenario.allies + self._scenario.enemies if kind.type_id == unit.unit_type)

    # --- The rest ---------------------------------------------------------------------------------------------------

    def seed(self, seed: int | None = None) -> int:
        """The seed; with an argument, begin again from that one, at the next `reset`."""
        if seed is not None:
            self._seed = seed
            self.skirmish = self._make_skirmish(seed=seed)
        return self._seed

    def render(self) -> None:
        """Nothing: there is no game to look at."""

    def save_replay(self) -> None:
        """Nothing: there is no game that could replay it."""

    def close(self) -> None:
        """Nothing: all it holds is memory."""
