"""Replay buffers for whole episodes and for transitions, what selects from them, and what paces them.

The server and the client stand on pydantic and on sockets; memories bring neither along, so these come when they are
asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from components.replay.checkpoint import CheckpointError, open_checkpoint, write_checkpoint
from components.replay.closed import Closed
from components.replay.episodes import EpisodeReplay, Sampled, SampledRollouts
from components.replay.fresh import FreshEpisodes
from components.replay.invalid import InvalidExperience, NameTaken, UnknownClient
from components.replay.limiter import SampleToInsertRatio
from components.replay.priorities import Priorities
from components.replay.prioritized import PrioritizedEpisodeReplay, PrioritizedTransitions
from components.replay.ranks import RankedPriorities
from components.replay.selectors import (
    FifoSelector,
    HighestSelector,
    LifoSelector,
    LowestSelector,
    PrioritizedSelector,
    Selector,
    UniformSelector,
)
from components.replay.service.high_water import Full, Policy
from components.replay.shared import Place, SharedArena
from components.replay.table import EpisodeTable, TransitionTable
from components.replay.transitions import Field, NStep, SampledTransitions, Transitions
from components.replay.two_phase import NotPushed, SampledUnion, Share, TwoPhaseReplay, UnionStatistics
from components.replay.windows import FrameStack, Rollout

if TYPE_CHECKING:
    from components.replay.service.client import ClientStatistics, ReplayClient
    from components.replay.service.episode_layout import EpisodeLayout
    from components.replay.service.host import ServerStatistics
    from components.replay.service.layout import AnyLayout, Layout
    from components.replay.service.proxy import ProxyStatistics, ReplayProxy
    from components.replay.service.search import Disconnected
    from components.replay.service.server import ReplayServer
    from components.replay.service.subscription import Subscription

_HOMES = {
    "ClientStatistics": "components.replay.service.client",
    "ReplayClient": "components.replay.service.client",
    "ProxyStatistics": "components.replay.service.proxy",
    "ReplayProxy": "components.replay.service.proxy",
    "AnyLayout": "components.replay.service.layout",
    "EpisodeLayout": "components.replay.service.episode_layout",
    "Layout": "components.replay.service.layout",
    "ReplayServer": "components.replay.service.server",
    "ServerStatistics": "components.replay.service.host",
    "Subscription": "components.replay.service.subscription",
    "Disconnected": "components.replay.service.search",
}

__all__ = [
    "AnyLayout",
    "CheckpointError",
    "ClientStatistics",
    "Closed",
    "Disconnected",
    "EpisodeLayout",
    "EpisodeReplay",
    "EpisodeTable",
    "Field",
    "FifoSelector",
    "FrameStack",
    "FreshEpisodes",
    "Full",
    "HighestSelector",
    "InvalidExperience",
    "Layout",
    "LifoSelector",
    "LowestSelector",
    "NStep",
    "NameTaken",
    "NotPushed",
    "Place",
    "Policy",
    "Priorities",
    "PrioritizedEpisodeReplay",
    "PrioritizedSelector",
    "PrioritizedTransitions",
    "ProxyStatistics",
    "RankedPriorities",
    "ReplayClient",
    "ReplayProxy",
    "ReplayServer",
    "Rollout",
    "SampleToInsertRatio",
    "Sampled",
    "SampledRollouts",
    "SampledTransitions",
    "SampledUnion",
    "Selector",
    "ServerStatistics",
    "Share",
    "SharedArena",
    "Subscription",
    "TransitionTable",
    "Transitions",
    "TwoPhaseReplay",
    "UniformSelector",
    "UnionStatistics",
    "UnknownClient",
    "open_checkpoint",
    "write_checkpoint",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'components.replay' has no attribute {name!r}")
    return getattr(import_module(home), name)
