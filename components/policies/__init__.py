"""Learning algorithms, one file per paper."""

from components.policies.base import EpisodeBatch, Learned, Policy
from components.policies.coma import Coma
from components.policies.iql import Iql
from components.policies.qmix import Qmix
from components.policies.recurrent import RecurrentOptions
from components.policies.vdn import Vdn

__all__ = ["Coma", "EpisodeBatch", "Iql", "Learned", "Policy", "Qmix", "RecurrentOptions", "Vdn"]
