"""QMIX on 8m with a custom TrajectoryManager: now and then a batch has only won episodes."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from components import TrajectoryManager
from components.replay_buffers import EpisodeReplay, Sampled
from components.trajectory_manager import segments_of
from messages import InsertTransitionMsg, SampleBatchMsg
from orchestra import Topology, extends, load_experiment, on

STANDARD = Path(__file__).resolve().parents[2] / "experiments" / "qmix_8m.py"


class Rehearsal(TrajectoryManager):
    """Keeps won episodes a second time, and draws every n-th batch from them, once there are enough."""

    def __init__(self, *, replay: EpisodeReplay, every: int) -> None:
        super().__init__(replay=replay)
        self._wins = EpisodeReplay(replay.schema, replay.capacity)
        self._every = every

    @on(InsertTransitionMsg)
    def insert(self, msg: InsertTransitionMsg) -> None:
        super().insert(msg)
        if msg.won.any():
            self._wins.insert(segments_of(msg.select(msg.won)))

    def draw(self, msg: SampleBatchMsg) -> Sampled:
        """Draw from the won episodes when it is their turn."""
        if msg.number % self._every or len(self._wins) < msg.batch_size:
            return super().draw(msg)
        sampled = self._wins.sample(msg.batch_size, self.rng)
        # Priorities for these are ignored: no episode of the other buffer has this generation.
        return replace(sampled, generations=np.full_like(sampled.generations, -1))


@extends(load_experiment(STANDARD))
def experiment(
    topology: Topology,
    *,
    rehearse_every: Annotated[int, Field(ge=1, description="every so many batches, one of won episodes")] = 4,
) -> Topology:
    """Lay out the standard run, with another TrajectoryManager in the place of its own."""
    topology.nodes["learner"].replace("trajectories", Rehearsal, every=rehearse_every)
    return topology
