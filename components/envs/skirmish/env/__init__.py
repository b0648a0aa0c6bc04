"""The import names of SMAC and SMACv2: `skirmish.env…` replaces `smac.env…` and `smacv2.env…`.

Code written for SMAC or SMACv2 changes only the first word of its imports.
"""

from ..multi_agent_env import MultiAgentEnv
from ..starcraft2env import StarCraft2Env

__all__ = ["MultiAgentEnv", "StarCraft2Env"]
