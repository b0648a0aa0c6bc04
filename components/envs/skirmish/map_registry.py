"""SMAC's and SMACv2's registry of maps, and SMAC's names of the difficulty levels."""

from typing import Any

from .scenario_file import scenario_named
from .scenarios import SCENARIOS

DRAWN_MAPS = {"10gen_terran": "terran", "10gen_protoss": "protoss", "10gen_zerg": "zerg"}
"""The race of each map of SMACv2. The number of units depends on the `capability_config`."""


def get_map_params(map_name: str) -> dict[str, Any]:
    """Return the registry's entry for a map.

    Raises:
        ValueError: the map is unknown; the message lists the known scenarios.
    """
    drawn = map_name in DRAWN_MAPS
    scenario = scenario_named(f"{DRAWN_MAPS[map_name]}_10_vs_10" if drawn else map_name)
    return {
        "n_agents": len(scenario.allies),
        "n_enemies": len(scenario.enemies),
        "limit": scenario.limit,
        "a_race": scenario.allies[0].race[0].upper(),
        "b_race": scenario.enemies[0].race[0].upper(),
        "unit_type_bits": len(scenario.ally_types),
        "map_type": scenario.map_type,
        **({"map_name": "32x32_flat"} if drawn else {}),
    }


def get_smac_map_registry() -> dict[str, dict[str, Any]]:
    """Return the registry's entry for each map of SMAC and SMACv2."""
    fixed = [name for name, scenario in SCENARIOS.items() if scenario.draw is None]
    return {name: get_map_params(name) for name in [*fixed, *DRAWN_MAPS]}


DIFFICULTIES = {name: number for number, name in enumerate("123456789A", start=1)}
"""Difficulty levels 1 to 10 by SMAC's names."""
