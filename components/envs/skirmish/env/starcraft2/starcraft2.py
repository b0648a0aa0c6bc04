"""SMAC's module of the environment class."""

from ...starcraft2env import StarCraft2Env

__all__ = ["StarCraft2Env"]
