"""TrajectoryManager: holds experience and sends batches of it to the Trainer."""

from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from components.checkpoints import run_state
from components.checkpoints.array_file import CheckpointError
from components.checkpoints.part_files import files_of
from components.experience import ExperienceSchema
from components.replay_buffers import Episodes, Sampled
from messages import (
    BatchTrainingDataMsg,
    InsertTransitionMsg,
    NotSavedMsg,
    SampleBatchMsg,
    SaveCheckpointMsg,
    UpdatePriorityMsg,
)
from orchestra import Actor, Arrays, Escalate, Supervision, UsageError, on


class ReplayBuffer(Protocol):
    """Interface of the replay buffer of a TrajectoryManager, such as `EpisodeReplay` or `PrioritizedEpisodeReplay`."""

    @property
    def schema(self) -> ExperienceSchema: ...

    def insert(self, episodes: Episodes) -> None: ...

    def sample(self, batch_size: int, rng: np.random.Generator, *, sparse: bool = False) -> Sampled: ...

    def update(
        self, indices: NDArray[np.int64], generations: NDArray[np.int64], priorities: NDArray[np.float32]
    ) -> None: ...

    def save(self, path: Path, *, packed: bool = False) -> None: ...

    def load(self, path: Path) -> None: ...


class TrajectoryManager(Actor[InsertTransitionMsg | SampleBatchMsg | UpdatePriorityMsg | SaveCheckpointMsg]):
    """A replay buffer as an actor.

    A failure ends the run, because the Orchestrator would wait for ever for a batch that is not sent.

    The actor gives no snapshots to the flight recorder, because they would copy all experience. So a replay of its
    failure needs a record from its start on.

    Args:
        replay: the buffer, empty.
    """

    supervision: ClassVar[Supervision] = Escalate()

    def __init__(self, *, replay: ReplayBuffer) -> None:
        self._replay = replay
        self._files = files_of(replay)

    async def started(self) -> None:
        if self.resume_from is None:
            return
        values, _ = run_state.read(self.resume_from, self.me.address)
        self.rng.bit_generator.state = values["rng"]
        try:
            await self.offload(self._files.load, self._experience(self.resume_from))
        except (CheckpointError, OSError) as error:
            raise UsageError(f"the state of {self.me.address} does not fit this run: {error}") from error

    @on(InsertTransitionMsg)
    def insert(self, msg: InsertTransitionMsg) -> None:
        self._replay.insert(segments_of(msg))

    @on(SampleBatchMsg)
    async def sample(self, msg: SampleBatchMsg) -> None:
        sampled = self.draw(msg)
        for name in self._replay.schema.frames:  # sparse ones become dense here, while the Trainer learns
            sampled.batch.frames(name)
        await msg.trainer.tell(batch_message(msg.number, sampled, self._replay.schema))

    def draw(self, msg: SampleBatchMsg) -> Sampled:
        """Return the episodes to send for `msg`; a subclass may draw others."""
        return self._replay.sample(msg.batch_size, self.rng, sparse=True)

    @on(UpdatePriorityMsg)
    def update(self, msg: UpdatePriorityMsg) -> None:
        self._replay.update(msg.indices, msg.generations, msg.priorities)

    @on(SaveCheckpointMsg)
    async def save(self, msg: SaveCheckpointMsg) -> str | NotSavedMsg:
        values = {"rng": self.rng.bit_generator.state}
        try:
            folder = run_state.write(self.run_directory, msg.env_steps, self.me.address, values)
            await self.offload(self._files.save, self._experience(folder))
        except OSError as error:
            return NotSavedMsg(error=run_state.reason(error))
        return str(folder)

    def _experience(self, folder: Path) -> Path:
        return run_state.companion(folder, self.me.address, "replay")


def segments_of(msg: InsertTransitionMsg) -> Episodes:
    """Return the segments of a message in the form for replay buffers."""
    return Episodes(
        lengths=msg.lengths,
        terminated=msg.terminated,
        truncated=msg.truncated,
        versions=msg.versions,
        **msg.per_frame.plain(),
        **msg.per_step.plain(),
        **msg.per_segment.plain(),
    )


def batch_message(number: int, sampled: Sampled, schema: ExperienceSchema) -> BatchTrainingDataMsg:
    """Return the message of a sampled batch, the `number`-th of a run."""
    batch = sampled.batch
    schema.check_names(batch.fields)
    versions = batch.versions_of_steps
    if versions is None:
        versions = np.full(int(batch.lengths.sum()), -1, np.int32)
    return BatchTrainingDataMsg(
        number=number,
        per_frame=Arrays({name: batch.held(name) for name in schema.frames}),
        per_step=Arrays({name: batch.steps(name) for name in schema.steps}),
        per_segment=Arrays({name: batch[name] for name in schema.segments}),
        lengths=batch.lengths,
        terminated=batch.terminated,
        truncated=batch.truncated,
        versions=versions,
        weights=batch.weights,
        indices=sampled.indices,
        generations=sampled.generations,
    )
