"""Replay buffers for whole episodes and for transitions, what selects from them, and what paces them."""

from components.replay.checkpoint import CheckpointError, open_checkpoint, write_checkpoint
from components.replay.episodes import EpisodeReplay, Sampled
from components.replay.fresh import FreshEpisodes
from components.replay.invalid import InvalidExperience
from components.replay.limiter import SampleToInsertRatio
from components.replay.priorities import Priorities
from components.replay.prioritized import PrioritizedEpisodeReplay, PrioritizedTransitions
from components.replay.selectors import (
    FifoSelector,
    HighestSelector,
    LifoSelector,
    LowestSelector,
    PrioritizedSelector,
    Selector,
    UniformSelector,
)
from components.replay.shared import Place, SharedArena
from components.replay.table import EpisodeTable, TransitionTable
from components.replay.transitions import Field, NStep, SampledTransitions, Transitions
from components.replay.two_phase import NotPushed, SampledUnion, Share, TwoPhaseReplay, UnionStatistics
from components.replay.windows import FrameStack, Rollout

__all__ = [
    "CheckpointError",
    "EpisodeReplay",
    "EpisodeTable",
    "Field",
    "FifoSelector",
    "FrameStack",
    "FreshEpisodes",
    "HighestSelector",
    "InvalidExperience",
    "LifoSelector",
    "LowestSelector",
    "NStep",
    "NotPushed",
    "Place",
    "Priorities",
    "PrioritizedEpisodeReplay",
    "PrioritizedSelector",
    "PrioritizedTransitions",
    "Rollout",
    "SampleToInsertRatio",
    "Sampled",
    "SampledTransitions",
    "SampledUnion",
    "Selector",
    "Share",
    "SharedArena",
    "TransitionTable",
    "Transitions",
    "TwoPhaseReplay",
    "UniformSelector",
    "UnionStatistics",
    "open_checkpoint",
    "write_checkpoint",
]
