"""SMAC's registry of maps, and its names of difficulties."""

from typing import Any

from components.envs.skirmish.scenario_file import scenario_named


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
