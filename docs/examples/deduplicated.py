"""QMIX with a custom prioritised replay buffer: the priority of an episode that is twice in a batch is set once.

It has a bug, which `docs/debugging.md` finds.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from components import TrajectoryManager
from components.replay_buffers import PrioritizedEpisodeReplay
from orchestra import Topology, extends, load_experiment

STANDARD = Path(__file__).resolve().parents[2] / "experiments" / "qmix_8m.py"


class DeduplicatedReplay(PrioritizedEpisodeReplay):
    """Sets the priority of each episode of a batch once."""

    def update(
        self, indices: NDArray[np.int64], generations: NDArray[np.int64], priorities: NDArray[np.float32]
    ) -> None:
        once, first = np.unique(indices, return_index=True)
        super().update(once, generations[first], priorities[: len(once)])


class Deduplicated(TrajectoryManager):
    """A TrajectoryManager with a DeduplicatedReplay."""

    def __init__(self, *, replay: PrioritizedEpisodeReplay) -> None:
        super().__init__(replay=DeduplicatedReplay(replay.schema, replay.capacity))


@extends(load_experiment(STANDARD))
def experiment(topology: Topology) -> Topology:
    """Plan the standard run with the Deduplicated manager. Requires --prioritized."""
    topology.nodes["learner"].replace("trajectories", Deduplicated)
    return topology
