"""SMAC's module of the registry of maps."""

from ....map_registry import get_map_params, get_smac_map_registry

__all__ = ["get_map_params", "get_smac_map_registry"]
