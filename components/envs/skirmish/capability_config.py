"""Conversion of SMACv2's `capability_config` into a scenario and into additional distributions."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .distributions import Distribution, Places, get_distribution
from .kernel.constants import CELLS
from .map_registry import DRAWN_MAPS
from .scenarios import SCENARIOS, Scenario, Spread, make_scenario
from .tables import SPAWN_GAP, hexagonal_spiral
from .units import UnitType

Config = Mapping[str, Any]

_WAYS = {"surrounded_and_reflect": None, "surrounded": 1.0, "reflect_position": 0.0}
"""The share of episodes in which the allies are surrounded; if None, it is 1 - `p`."""
_KINDS = {
    "team_gen": ("weighted_teams", "all_teams", "fixed"),
    "start_positions": tuple(_WAYS),
    "attack": ("per_agent_uniform", "fixed"),
    "health": ("per_agent_uniform", "fixed"),
    "enemy_mask": ("mask", "fixed"),
}
"""The capabilities, and the distributions that are supported for each."""
_BESIDES = ("all_teams", "fixed")
"""Distributions that the battle does not draw itself."""
_COUNTS = ("n_units", "n_enemies")
_STACKS = (8.0, 16.0), (24.0, 16.0)
"""Where the allies and the enemies start if `start_positions` is not configured."""


def scenario_of(map_name: str, capability_config: Config | None) -> Scenario:
    """Return the scenario that SMACv2 plays on a map with a configuration.

    Args:
        map_name: one of `DRAWN_MAPS`; or a scenario such as `terran_5_vs_5`, which includes its configuration.
        capability_config: SMACv2's dictionary: `n_units`, `n_enemies` and `team_gen`; optionally
            `start_positions`, `attack`, `health` and `enemy_mask`.

    Raises:
        ValueError: the map is unknown, or the configuration is invalid.
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
    _check(capability_config)
    built_in = SCENARIOS[f"{DRAWN_MAPS[map_name]}_5_vs_5"]
    bits = [unit.name for unit in built_in.ally_types]
    teams, places = capability_config["team_gen"], capability_config.get("start_positions")
    unit_types = teams.get("unit_types", bits)
    if strangers := [unit for unit in unit_types if unit not in bits]:
        raise ValueError(f"{map_name} has no unit {strangers[0]!r}; there are {', '.join(bits)}")
    shares = teams["weights"] if teams["dist_type"] == "weighted_teams" else [1.0] * len(unit_types)
    weights = dict(zip(unit_types, shares, strict=True))
    surrounded = _WAYS[places["dist_type"]] if places is not None else 0.0
    draw = {
        "allies": int(capability_config["n_units"]),
        "enemies": int(capability_config["n_enemies"]),
        "types": bits,
        "weights": {unit: float(weights.get(unit, 0.0)) for unit in bits},
        "never_alone": list(teams.get("exception_unit_types", ())),
        "observe": bool(teams.get("observe", True)),
        "surrounded": 1.0 - float(places["p"]) if places is not None and surrounded is None else surrounded,
        "attack": _spread(capability_config, "attack", 1.0),
        "health": _spread(capability_config, "health", LARGEST_LEVEL),
        "mask_probability": _mask_probability(capability_config.get("enemy_mask")),
    }
    return make_scenario(
        map_name,
        limit=built_in.limit,
        map_type=built_in.map_type,
        terrain=built_in.terrain,
        draw=draw,
        unit_ranges=True,
    )


LARGEST_LEVEL = 0.99
"""The greatest health level: an agent with level 1 would die at once."""


def distributions_of(capability_config: Config | None, types: Sequence[UnitType], seed: int) -> list[Distribution]:
    """Return the distributions of what the battle does not draw itself, each with its own random stream.

    Args:
        capability_config: a valid one, or None.
        types: the unit types of the map.
        seed: the seed of all distributions.
    """
    if capability_config is None:
        return []
    counts = {name: capability_config[name] for name in _COUNTS}
    found: list[Distribution] = []
    for number, key in enumerate(_KINDS):
        stream = {"env_key": key, "seed": np.random.SeedSequence(seed, spawn_key=(_STREAM, number))}
        entry = capability_config.get(key)
        if entry is not None and entry["dist_type"] in _BESIDES:
            found.append(get_distribution(entry["dist_type"])({**entry, **counts, **stream}))
        elif entry is None and key == "start_positions":
            found.append(Stacked({"map_x": CELLS, "map_y": CELLS, "types": types, **counts, **stream}))
    return found


_STREAM = 0x5AC2  # separates these streams from those of the battles, which have the same seed


class Stacked(Places):
    """Places each side around a point of its own; used if `start_positions` is not configured."""

    def places(self, allies: int, enemies: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        spacing = 2.0 * max(unit.separation for unit in self.config["types"]) + SPAWN_GAP
        ours, theirs = (
            np.array(point) + np.array(hexagonal_spiral(size, spacing))
            for point, size in zip(_STACKS, (allies, enemies), strict=True)
        )
        return ours, theirs


def _check(config: Config) -> None:
    """Raise `ValueError` if something is missing, unknown or not supported."""
    known = [*_COUNTS, *_KINDS]
    if others := sorted(config.keys() - set(known)):
        raise ValueError(f"capability_config[{others[0]!r}] is unknown; there are {', '.join(known)}")
    if missing := [key for key in (*_COUNTS, "team_gen") if key not in config]:
        raise ValueError(f"capability_config has no {missing[0]!r}")
    for key, allowed in _KINDS.items():
        kind = config[key].get("dist_type") if key in config else allowed[0]
        if kind not in allowed:
            raise ValueError(
                f"capability_config[{key!r}]['dist_type'] is {kind!r}, which is not supported; {', '.join(allowed)} are"
            )
        if kind == "fixed" and not config[key].get("items"):
            raise ValueError(f"capability_config[{key!r}] has no 'items'")
    for axis in ("map_x", "map_y"):
        size = config.get("start_positions", {}).get(axis, CELLS)
        if size != CELLS:
            raise ValueError(f"capability_config['start_positions'][{axis!r}] is {size}, must be {CELLS}")


def _spread(config: Config, key: str, most: float) -> Spread | None:
    """Return the bounds of a number of each agent, None if it has none; for `fixed`, the bounds are not used."""
    entry = config.get(key)
    if entry is None:
        return None
    observe = bool(entry.get("observe", True))
    if entry["dist_type"] == "fixed":
        return Spread(0.0, 0.0, observe)
    low, high = (float(np.reshape(entry[bound], ())) for bound in ("lower_bound", "upper_bound"))
    if not 0.0 <= low <= high <= most:
        raise ValueError(f"capability_config[{key!r}] is between {low:g} and {high:g}, must be within 0 and {most:g}")
    return Spread(low, high, observe)


def _mask_probability(entry: Config | None) -> float | None:
    if entry is None:
        return None
    probability = 1.0 if entry["dist_type"] == "fixed" else float(entry["mask_probability"])
    if not 0.0 <= probability <= 1.0:
        raise ValueError(
            f"capability_config['enemy_mask']['mask_probability'] is {probability:g}, must be between 0 and 1"
        )
    return probability
