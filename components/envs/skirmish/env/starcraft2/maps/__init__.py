"""SMAC's package of maps."""

from ....map_registry import get_map_params

__all__ = ["get_map_params"]
