"""SMACv2's module of what is drawn for an episode."""

from ...distributions import Distribution, get_distribution, register_distribution

__all__ = ["Distribution", "get_distribution", "register_distribution"]
