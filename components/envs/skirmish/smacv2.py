"""SMACv2's wrapper class, which draws armies and starting places according to a dictionary."""

from collections.abc import Mapping, MutableSequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .capability_config import distributions_of, scenario_of
from .distributions import Distribution
from .rendering import Image
from .starcraft2env import StarCraft2Env


class StarCraftCapabilityEnvWrapper:
    """`smacv2.env.starcraft2.wrapper.StarCraftCapabilityEnvWrapper`, simulated by `Battles`.

    Attributes that it lacks are looked up in the wrapped environment, `env`. By default, the edition of SMACv2 is
    that of the published curves, without the later filter of enemies that no agent has found. The seed determines all
    draws.

    Args:
        capability_config: see `scenario_of`; it is not changed.
        map_name: one of `DRAWN_MAPS`, or a scenario such as `terran_5_vs_5` with the published configuration.
        use_unit_ranges: whether agents see and shoot as far as their units can, instead of 9 and 6 cells.
        min_attack_range: the lower bound of an agent's shooting range with `use_unit_ranges`, in cells.
        others: further arguments of `StarCraft2Env`.

    Raises:
        ValueError: an argument is wrong, or not supported.
    """

    def __init__(
        self,
        capability_config: Mapping[str, Any] | None = None,
        map_name: str = "10gen_terran",
        *,
        use_unit_ranges: bool = True,
        min_attack_range: float = 2.0,
        **others: Any,
    ) -> None:
        self._config = capability_config
        scenario = replace(
            scenario_of(map_name, capability_config), unit_ranges=use_unit_ranges, least_shoot=min_attack_range
        )
        self.env = StarCraft2Env(map_name, scenario=scenario, **others)
        self._distributions = self._seeded(self.env.seed())

    def _seeded(self, seed: int) -> list[Distribution]:
        return distributions_of(self._config, self.env.skirmish.scenario.ally_types, seed)

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # not set yet, as during unpickling
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self) -> tuple[list[NDArray[np.float32]], NDArray[np.float32]]:
        """Draw armies, places and capabilities, start an episode, and return the observations and the state."""
        return self.env.reset({key: part for one in self._distributions for key, part in one.generate().items()})

    def seed(self, seed: int | None = None) -> int:
        """Return the seed; with an argument, restart from that seed at the next `reset`."""
        if seed is not None:
            self._distributions = self._seeded(seed)
        return self.env.seed(seed)

    def full_restart(self) -> None:
        """Restart from the seed at the next `reset`, and count a restart."""
        self._distributions = self._seeded(self.env.seed())
        self.env.full_restart()

    def step(self, actions: MutableSequence[Any]) -> tuple[float, bool, dict[str, Any]]:
        """Make one step; see `StarCraft2Env.step`."""
        return self.env.step(actions)

    def render(self, mode: str = "human") -> Image | None:
        """Draw the battle; see `StarCraft2Env.render`."""
        return self.env.render(mode)

    def get_env_info(self) -> dict[str, Any]:
        """Return sizes and names, with the size of an agent's capabilities as `cap_shape`."""
        return self.env.get_env_info() | {"cap_shape": self.get_cap_size()}

    def get_cap_size(self) -> int:
        """Return the number of an agent's capabilities: those that are drawn for it, and one for each unit type."""
        return len(self.env.skirmish.scenario.capabilities) + self.env.unit_type_bits

    def get_capabilities_agent(self, agent_id: int) -> NDArray[np.float32]:
        """Return the capabilities of an agent, dead or alive, (C,): attack probability, health level, one-hot type."""
        skirmish = self.env.skirmish
        numbers = skirmish.scenario.capabilities
        capabilities = np.zeros(self.get_cap_size(), dtype=np.float32)
        capabilities[: len(numbers)] = [skirmish.kinds[name][0, agent_id] for name in numbers]
        bit = self.env.get_unit_type_id(self.env.get_unit_by_id(agent_id), ally=True)
        capabilities[len(numbers) + bit] = 1.0
        return capabilities

    def get_capabilities(self) -> NDArray[np.float32]:
        """Return the capabilities of all agents in a row, (A C,)."""
        return np.concatenate([self.get_capabilities_agent(i) for i in range(self.env.n_agents)])

    def get_obs_feature_names(self) -> list[str]:
        """Return the names of an observation's columns, from agent 0's view."""
        env, time = self.env, ["timestep"] * self.env.obs_timestep_number
        if not env.obs_starcraft:
            return time
        names = [f"move_action_{way}" for way in ("north", "south", "east", "west")]
        names += [f"pathing_{k}" for k in range(env.n_obs_pathing * env.obs_pathing_grid)]
        names += [f"height_{k}" for k in range(env.n_obs_height * env.obs_terrain_height)]
        place, types = ["distance", "relative_x", "relative_y"], [f"type_{k}" for k in range(env.unit_type_bits)]
        ours = ["health"] + ["shield"] * env.shield_bits_ally
        theirs = ["health"] + ["shield"] * env.shield_bits_enemy
        numbers = list(env.skirmish.scenario.capabilities)
        enemy = ["attackable", *place, *(theirs if env.obs_all_health else []), *types]
        ally = ["visible", *place, *(ours if env.obs_all_health else []), *numbers, *types]
        ally += [f"last_action_{k}" for k in range(env.n_actions * env.obs_last_action)]
        names += [f"enemy_{e}_{column}" for e in range(env.n_enemies) for column in enemy]
        names += [f"ally_{i}_{column}" for i in range(1, env.n_agents) for column in ally]
        own = (ours if env.obs_own_health else []) + numbers + ["x", "y"] * env.obs_own_pos
        own += ["fov_x", "fov_y"] * env.conic_fov + types
        return names + [f"own_{column}" for column in own] + time

    def get_state_feature_names(self) -> list[str]:
        """Return the names of the state's columns.

        Raises:
            ValueError: with `obs_instead_of_state`, because the state is then all observations in a row.
        """
        env = self.env
        if env.obs_instead_of_state:
            raise ValueError("with obs_instead_of_state, the state has the columns of the observations")
        names = [f"ally_{i}_{column}" for i in range(env.n_agents) for column in env.ally_state_attr_names]
        names += [f"enemy_{e}_{column}" for e in range(env.n_enemies) for column in env.enemy_state_attr_names]
        if env.state_last_action:
            names += [f"ally_{i}_last_action_{k}" for i in range(env.n_agents) for k in range(env.n_actions)]
        return names + ["timestep"] * env.state_timestep_number
