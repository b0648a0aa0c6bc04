"""Air combat behind the interface of MaCA (CETC-TFAI, 2019), for agents that were written for it.

In a tree of MaCA, `environment/interface.py` becomes one line:

    from components.envs.air_combat.maca import *
"""

from components.envs.air_combat.maca.environment import Environment, angle_cal, get_distance
from components.envs.air_combat.maca.fighting import BaseAgent, RoundResult, fight
from components.envs.air_combat.maca.simple import ObsConstruct

__all__ = ["BaseAgent", "Environment", "ObsConstruct", "RoundResult", "angle_cal", "fight", "get_distance"]
