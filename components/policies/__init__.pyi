from .base import EpisodeBatch as EpisodeBatch
from .base import Policy as Policy
from .base import TrainStepResult as TrainStepResult
from .coma import Coma as Coma
from .iql import Iql as Iql
from .qmix import Qmix as Qmix
from .recurrent import RecurrentOptions as RecurrentOptions
from .vdn import Vdn as Vdn
