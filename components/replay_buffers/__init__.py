"""Replay buffers for whole episodes and for transitions, their selectors, and their rate limiter."""

from components.checkpoints.array_file import CheckpointError, open_checkpoint, write_checkpoint
from components.replay_buffers.closed import Closed
from components.replay_buffers.episode_store import Episodes
from components.replay_buffers.episodes import (
    EpisodeBuffer,
    EpisodeReplay,
    EpisodeTable,
    FreshEpisodes,
    PrioritizedEpisodeReplay,
    Sampled,
    SampledRollouts,
)
from components.replay_buffers.federated import (
    ClientSample,
    FederatedReplay,
    NotPushed,
    SampledUnion,
    UnionStatistics,
)
from components.replay_buffers.invalid import InvalidExperience, NameTaken, UnknownClient
from components.replay_buffers.limiter import SampleToInsertRatio
from components.replay_buffers.priorities import Priorities
from components.replay_buffers.ranks import RankedPriorities
from components.replay_buffers.rows import Field
from components.replay_buffers.selectors import (
    FifoSelector,
    HighestSelector,
    LifoSelector,
    LowestSelector,
    PrioritizedSelector,
    Selector,
    UniformSelector,
)
from components.replay_buffers.transitions import (
    PrioritizedTransitions,
    SampledTransitions,
    Transitions,
    TransitionTable,
)
from components.replay_buffers.windows import FrameStack, NStep, RolloutWindow

__all__ = [
    "CheckpointError",
    "ClientSample",
    "Closed",
    "EpisodeBuffer",
    "EpisodeReplay",
    "EpisodeTable",
    "Episodes",
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
    "RolloutWindow",
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
