"""SMACv2's wrapper class, whose armies and starting places are drawn as a dictionary says."""

from collections.abc import Mapping, MutableSequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .kernel import constants
from .map_registry import DRAWN_MAPS
from .rendering import Image
from .scenarios import SCENARIOS, Scenario, make_scenario
from .starcraft2env import StarCraft2Env

_WAYS = {"surrounded_and_reflect": None, "surrounded": 1.0, "reflect_position": 0.0}
"""The share of episodes in which the allies are surrounded; None where `p` gives that of the others."""


def scenario_of(map_name: str, capability_config: Mapping[str, Any] | None) -> Scenario:
    """Return what SMACv2 plays on a map with a configuration.

    Args:
        map_name: one of `DRAWN_MAPS`; or a scenario such as `terran_5_vs_5`, which has its configuration in it.
        capability_config: SMACv2's dictionary: `n_units`, `n_enemies`, `team_gen` of type `weighted_teams`, and
            `start_positions` of type `surrounded_and_reflect`, `surrounded` or `reflect_position`.

    Raises:
        ValueError: there is no such map, or something in the configuration is wrong or not supported.
    """
    drawn = [name for name, scenario in SCENARIOS.items() if scenario.draw is not None]
    if map_name in drawn:
        if capability_config is not None:
            raise ValueError(f"{map_name} has a capability_config of its own; give one with {', '.join(DRAWN_MAPS)}")
        return SCENARIOS[map_name]
    if map_name not in DRAWN_MAPS:
        raise ValueError(f"map_name is {map_name!r}, must be one of {', '.join([*DRAWN_MAPS, *drawn])}")
    if capability_config is None:
        raise ValueError(f"{map_name} needs a capability_config")
    known = {"n_units", "n_enemies", "team_gen", "start_positions"}
    if others := sorted(capability_config.keys() - known):
        raise ValueError(f"capability_config[{others[0]!r}] is not supported; {', '.join(sorted(known))} are")
    if missing := sorted(known - capability_config.keys()):
        raise ValueError(f"capability_config has no {missing[0]!r}")
    built_in = SCENARIOS[f"{DRAWN_MAPS[map_name]}_5_vs_5"]
    teams, places = capability_config["team_gen"], capability_config["start_positions"]
    _check("team_gen", teams, ("weighted_teams",))
    _check("start_positions", places, tuple(_WAYS))
    for axis in ("map_x", "map_y"):
        if places.get(axis, constants.CELLS) != constants.CELLS:
            raise ValueError(f"capability_config['start_positions'][{axis!r}] is {places[axis]}, must be 32")
    surrounded = _WAYS[places["dist_type"]]
    weights = dict(zip(teams["unit_types"], teams["weights"], strict=True))
    bits = [unit.name for unit in built_in.ally_types]
    if strangers := [unit for unit in weights if unit not in bits]:
        raise ValueError(f"{map_name} has no unit {strangers[0]!r}; there are {', '.join(bits)}")
    draw = {
        "allies": int(capability_config["n_units"]),
        "enemies": int(capability_config["n_enemies"]),
        "types": bits,
        "weights": {unit: float(weights.get(unit, 0.0)) for unit in bits},
        "never_alone": list(teams.get("exception_unit_types", ())),
        "observe": bool(teams.get("observe", True)),
        "surrounded": 1.0 - float(places["p"]) if surrounded is None else surrounded,
    }
    return make_scenario(
        map_name,
        limit=built_in.limit,
        map_type=built_in.map_type,
        terrain=built_in.terrain,
        draw=draw,
        unit_ranges=True,
    )


def _check(name: str, table: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    if table.get("dist_type") not in allowed:
        raise ValueError(
            f"capability_config[{name!r}]['dist_type'] is {table.get('dist_type')!r}, which is not supported; "
            f"{', '.join(allowed)} are"
        )


class StarCraftCapabilityEnvWrapper:
    """What `smacv2.env.starcraft2.wrapper.StarCraftCapabilityEnvWrapper` is, played by `Battles`.

    What it has no method for is looked up in the environment that it wraps, `env`. By default it plays SMACv2 as the
    published curves were made, without the later filter of enemies that nobody has found. What is not supported is
    refused by name: the cone of vision, and capabilities other than unit types.

    Args:
        capability_config: see `scenario_of`; it is not changed.
        map_name: one of `DRAWN_MAPS`, or a scenario such as `terran_5_vs_5` with the published configuration.
        use_unit_ranges: whether agents see and shoot as far as their units can, instead of 9 and 6 cells.
        min_attack_range: the least distance at which an attack may be ordered, with `use_unit_ranges`, in cells.
        others: arguments of `StarCraft2Env`.

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
        conic_fov: bool = False,
        **others: Any,
    ) -> None:
        if conic_fov:
            raise ValueError(f"conic_fov is {conic_fov!r}, which is not supported; False is")
        scenario = replace(
            scenario_of(map_name, capability_config), unit_ranges=use_unit_ranges, least_shoot=min_attack_range
        )
        self.env = StarCraft2Env(map_name, scenario=scenario, **others)

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # before there is one, as while it is unpickled
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self) -> tuple[list[NDArray[np.float32]], NDArray[np.float32]]:
        """Draw armies and places and start an episode; returns the observations and the state."""
        return self.env.reset()

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
        """Return the number of an agent's capabilities: one for each unit type."""
        return self.env.unit_type_bits

    def get_capabilities_agent(self, agent_id: int) -> NDArray[np.float32]:
        """Return the one-hot unit type of an agent, dead or alive, (types,)."""
        bit = self.env.get_unit_type_id(self.env.get_unit_by_id(agent_id), ally=True)
        capabilities = np.zeros(self.get_cap_size(), dtype=np.float32)
        capabilities[bit] = 1.0
        return capabilities

    def get_capabilities(self) -> NDArray[np.float32]:
        """Return the capabilities of all agents in a row, (A types,)."""
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
        enemy = ["attackable", *place, *(theirs if env.obs_all_health else []), *types]
        ally = ["visible", *place, *(ours if env.obs_all_health else []), *types]
        ally += [f"last_action_{k}" for k in range(env.n_actions * env.obs_last_action)]
        names += [f"enemy_{e}_{column}" for e in range(env.n_enemies) for column in enemy]
        names += [f"ally_{i}_{column}" for i in range(1, env.n_agents) for column in ally]
        own = (ours if env.obs_own_health else []) + ["x", "y"] * env.obs_own_pos + types
        return names + [f"own_{column}" for column in own] + time

    def get_state_feature_names(self) -> list[str]:
        """Return the names of the state's columns.

        Raises:
            ValueError: the state is all observations in a row, with `obs_instead_of_state`.
        """
        env = self.env
        if env.obs_instead_of_state:
            raise ValueError("with obs_instead_of_state, the state has the columns of the observations")
        names = [f"ally_{i}_{column}" for i in range(env.n_agents) for column in env.ally_state_attr_names]
        names += [f"enemy_{e}_{column}" for e in range(env.n_enemies) for column in env.enemy_state_attr_names]
        if env.state_last_action:
            names += [f"ally_{i}_last_action_{k}" for i in range(env.n_agents) for k in range(env.n_actions)]
        return names + ["timestep"] * env.state_timestep_number
