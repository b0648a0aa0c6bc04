"""SMACv2's module of the distributions that draw an episode's configuration."""

from ...distributions import Distribution, get_distribution, register_distribution

__all__ = ["Distribution", "get_distribution", "register_distribution"]
