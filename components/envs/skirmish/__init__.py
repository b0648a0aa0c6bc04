"""The embedded simulator of the StarCraft multi-agent challenge."""

from components.envs.skirmish.opposition import Opponent, Opposition
from components.envs.skirmish.options import Features, Rewards
from components.envs.skirmish.scenarios import SCENARIOS, Scenario
from components.envs.skirmish.skirmish import Skirmish
from components.envs.skirmish.starcraft2env import StarCraft2Env, get_map_params

__all__ = [
    "SCENARIOS",
    "Features",
    "Opponent",
    "Opposition",
    "Rewards",
    "Scenario",
    "Skirmish",
    "StarCraft2Env",
    "get_map_params",
]
