"""Replay buffers for whole episodes and for transitions, what selects from them, and what paces them.

The server and the client stand on pydantic and on sockets; memories bring neither along, so these come when they are
asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from components.checkpoints.array_file import CheckpointError, open_checkpoint, write_checkpoint
from components.replay_buffers.closed import Closed
from components.replay_buffers.episodes import EpisodeReplay, Sampled, SampledRollouts
from components.replay_buffers.federated import (
    ClientSample,
    FederatedReplay,
    NotPushed,
    SampledUnion,
    UnionStatistics,
)
from components.replay_buffers.fresh import FreshEpisodes
from components.replay_buffers.invalid import InvalidExperience, NameTaken, UnknownClient
from components.replay_buffers.limiter import SampleToInsertRatio
from components.replay_buffers.priorities import Priorities
from components.replay_buffers.prioritized import PrioritizedEpisodeReplay, PrioritizedTransitions
from components.replay_buffers.ranks import RankedPriorities
from components.replay_buffers.selectors import (
    FifoSelector,
    HighestSelector,
    LifoSelector,
    LowestSelector,
    PrioritizedSelector,
    Selector,
    UniformSelector,
)
from components.replay_buffers.shared import Place, SharedArena
from components.replay_buffers.table import EpisodeTable, TransitionTable
from components.replay_buffers.transitions import Field, NStep, SampledTransitions, Transitions
from components.replay_buffers.windows import FrameStack, Rollout
from components.replay_server.high_water import Full, Policy

if TYPE_CHECKING:
    from components.replay_server.client import ClientStatistics, ReplayClient
    from components.replay_server.episode_layout import EpisodeLayout
    from components.replay_server.host import ServerStatistics
    from components.replay_server.layout import AnyLayout, Layout
    from components.replay_server.proxy import ProxyStatistics, ReplayProxy
    from components.replay_server.search import Disconnected
    from components.replay_server.server import ReplayServer
    from components.replay_server.subscription import Subscription

_HOMES = {
    "ClientStatistics": "components.replay_server.client",
    "ReplayClient": "components.replay_server.client",
    "ProxyStatistics": "components.replay_server.proxy",
    "ReplayProxy": "components.replay_server.proxy",
    "AnyLayout": "components.replay_server.layout",
    "EpisodeLayout": "components.replay_server.episode_layout",
    "Layout": "components.replay_server.layout",
    "ReplayServer": "components.replay_server.server",
    "ServerStatistics": "components.replay_server.host",
    "Subscription": "components.replay_server.subscription",
    "Disconnected": "components.replay_server.search",
}

__all__ = [
    "AnyLayout",
    "CheckpointError",
    "ClientSample",
    "ClientStatistics",
    "Closed",
    "Disconnected",
    "EpisodeLayout",
    "EpisodeReplay",
    "EpisodeTable",
    "FederatedReplay",
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
    "SharedArena",
    "Subscription",
    "TransitionTable",
    "Transitions",
    "UniformSelector",
    "UnionStatistics",
    "UnknownClient",
    "open_checkpoint",
    "write_checkpoint",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'components.replay_buffers' has no attribute {name!r}")
    return getattr(import_module(home), name)
