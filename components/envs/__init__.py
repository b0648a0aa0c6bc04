"""Environments: what every one of them promises, and the battle simulator that needs nothing installed."""

from components.envs.base import Env, EnvSpec
from components.envs.skirmish import SCENARIOS, Features, Rewards, Scenario, Skirmish, StarCraft2Env

__all__ = ["SCENARIOS", "Env", "EnvSpec", "Features", "Rewards", "Scenario", "Skirmish", "StarCraft2Env"]
