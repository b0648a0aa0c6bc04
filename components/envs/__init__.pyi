from .base import Env as Env
from .base import EnvSpec as EnvSpec
from .skirmish.options import Features as Features
from .skirmish.options import Rewards as Rewards
from .skirmish.scenarios import SCENARIOS as SCENARIOS
from .skirmish.scenarios import Scenario as Scenario
from .skirmish.skirmish import Skirmish as Skirmish
from .skirmish.starcraft2env import StarCraft2Env as StarCraft2Env
