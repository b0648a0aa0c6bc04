"""Replay buffers for whole episodes and for transitions, what selects from them, and what paces them."""

from components.replay.episodes import EpisodeReplay, InvalidExperience, Sampled
from components.replay.limiter import SampleToInsertRatio
from components.replay.prioritized import PrioritizedEpisodeReplay
from components.replay.selectors import (
    FifoSelector,
    HighestSelector,
    LifoSelector,
    LowestSelector,
    PrioritizedSelector,
    Selector,
    UniformSelector,
)
from components.replay.table import TransitionTable
from components.replay.transitions import Field, NStep, PrioritizedTransitions, SampledTransitions, Transitions

__all__ = [
    "EpisodeReplay",
    "Field",
    "FifoSelector",
    "HighestSelector",
    "InvalidExperience",
    "LifoSelector",
    "LowestSelector",
    "NStep",
    "PrioritizedEpisodeReplay",
    "PrioritizedSelector",
    "PrioritizedTransitions",
    "SampleToInsertRatio",
    "Sampled",
    "SampledTransitions",
    "Selector",
    "TransitionTable",
    "Transitions",
    "UniformSelector",
]
