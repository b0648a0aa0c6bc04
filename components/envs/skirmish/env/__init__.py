"""The import names of SMAC and SMACv2: what is `smac.env…` or `smacv2.env…` there is `skirmish.env…` here.

Code that was written for them changes the first word of an import.
"""

from ..multi_agent_env import MultiAgentEnv
from ..starcraft2env import StarCraft2Env

__all__ = ["MultiAgentEnv", "StarCraft2Env"]
