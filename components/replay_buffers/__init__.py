"""Replay buffers for whole episodes and for transitions, what selects from them, and what paces them."""

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
from components.replay_buffers.table import EpisodeTable, TransitionTable
from components.replay_buffers.transitions import Field, NStep, SampledTransitions, Transitions
from components.replay_buffers.windows import FrameStack, Rollout

__all__ = [
    "CheckpointError",
    "ClientSample",
    "Closed",
    "EpisodeReplay",
    "EpisodeTable",
    "FederatedReplay",
    "Field",
    "FifoSelector",
    "FrameStack",
    "FreshEpisodes",
    "HighestSelector",
    "InvalidExperience",
    "LifoSelector",
    "LowestSelector",
    "NStep",
    "NameTaken",
    "NotPushed",
    "Priorities",
    "PrioritizedEpisodeReplay",
    "PrioritizedSelector",
    "PrioritizedTransitions",
    "RankedPriorities",
    "Rollout",
    "SampleToInsertRatio",
    "Sampled",
    "SampledRollouts",
    "SampledTransitions",
    "SampledUnion",
    "Selector",
    "TransitionTable",
    "Transitions",
    "UniformSelector",
    "UnionStatistics",
    "UnknownClient",
    "open_checkpoint",
    "write_checkpoint",
]
