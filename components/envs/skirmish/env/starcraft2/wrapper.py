"""SMACv2's module of the class that draws armies."""

from ...smacv2 import StarCraftCapabilityEnvWrapper

__all__ = ["StarCraftCapabilityEnvWrapper"]
