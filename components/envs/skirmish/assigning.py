"""Transfer of an episode's configuration, drawn by SMACv2's distributions, to a battle."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from .battles import Battles
from .units import unit_named

Config = Mapping[str, Mapping[str, Any]]


def assign_units(battles: Battles, config: Config) -> None:
    """Set types and places of battle 0's next episode, as far as the configuration has them.

    Raises:
        ValueError: types or places do not fit the scenario.
    """
    if battles.scenario.draw is None:
        raise ValueError(f"the armies of {battles.scenario.name} are not drawn, so none can be given")
    if "team_gen" in config:
        team = config["team_gen"]
        battles.assign(0, types=[unit_named(name) for side in ("ally_team", "enemy_team") for name in team[side]])
    sides = ("ally_start_positions", "enemy_start_positions")
    if any(side in config for side in sides):
        missing = [side for side in sides if side not in config]
        if missing:
            raise ValueError(f"episode_config has no {missing[0]!r}")
        places = np.concatenate([np.reshape(config[side]["item"], (-1, 2)) for side in sides])
        battles.assign(0, places=np.asarray(places, np.float64))


def assign_capabilities(battles: Battles, config: Config) -> None:
    """Set the capabilities of battle 0's agents from the configuration. Call it after the reset.

    Raises:
        ValueError: the capabilities do not fit the scenario.
    """
    draw, kinds, agents = battles.scenario.draw, battles.kinds[0], battles.n_agents
    assert draw is not None, "`assign_units` comes first"
    enemies = len(kinds) - agents
    for key, field, drawn in (("attack", "attack_chance", draw.attack), ("health", "health_level", draw.health)):
        if key in config:
            kinds[field][:agents] = _fitting(config, key, (agents,), drawn is not None)
    if "enemy_mask" in config:
        hidden = _fitting(config, "enemy_mask", (agents, enemies), draw.mask_probability is not None) != 0
        kinds["hidden_from"][agents:] = [sum(1 << int(i) for i in np.flatnonzero(column)) for column in hidden.T]
    battles.show()


def _fitting(config: Config, key: str, shape: tuple[int, ...], known: bool) -> Any:
    if not known:
        raise ValueError(f"episode_config has {key!r}, which the scenario does not have")
    item = np.asarray(config[key]["item"], np.float64)
    if item.size != np.prod(shape):
        raise ValueError(f"episode_config[{key!r}]['item'] is of shape {item.shape}, must be {shape}")
    return item.reshape(shape)
