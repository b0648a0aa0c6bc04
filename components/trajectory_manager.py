"""TrajectoryManager: holds experience, and sends batches of it to the Trainer that a sample names."""

from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from components.checkpoints import run_state
from components.checkpoints.array_file import CheckpointError
from components.replay_buffers.episodes import Sampled
from messages import BatchTrainingDataMsg, InsertTransitionMsg, SampleBatchMsg, SaveCheckpointMsg, UpdatePriorityMsg
from orchestra import Actor, Escalate, Supervision, UsageError, on


class ReplayBuffer(Protocol):
    """What a TrajectoryManager wraps; `EpisodeReplay` and `PrioritizedEpisodeReplay` are two."""

    def insert(
        self,
        obs: NDArray[np.float32],
        state: NDArray[np.float32],
        available: NDArray[np.bool_],
        actions: NDArray[np.int64],
        reward: NDArray[np.float32],
        terminated: NDArray[np.bool_],
        lengths: NDArray[np.int32],
        *,
        epsilon: NDArray[np.float32],
    ) -> None: ...

    def sample(self, batch_size: int, rng: np.random.Generator) -> Sampled: ...

    def update(
        self, indices: NDArray[np.int64], generations: NDArray[np.int64], priorities: NDArray[np.float32]
    ) -> None: ...

    def save(self, path: Path) -> None: ...

    def load(self, path: Path) -> None: ...


class TrajectoryManager(Actor[InsertTransitionMsg | SampleBatchMsg | UpdatePriorityMsg | SaveCheckpointMsg]):
    """A replay buffer behind a mailbox.

    A failure ends the run: the Orchestrator would wait for ever for the batch that was not sent.

    It says no state to the flight recorder: that would be a copy of all experience. So its failures are replayed from
    its birth, from a record that reaches back so far.

    Args:
        replay: the buffer, empty.
    """

    supervision: ClassVar[Supervision] = Escalate()

    def __init__(self, *, replay: ReplayBuffer) -> None:
        self._replay = replay

    async def started(self) -> None:
        if self.resume_from is None:
            return
        values, _ = run_state.read(self.resume_from, self.me.address)
        self.rng.bit_generator.state = values["rng"]
        try:
            await self.offload(self._replay.load, self._experience(self.resume_from))
        except (CheckpointError, OSError) as error:
            raise UsageError(f"what {self.me.address} saved does not fit this run: {error}") from error

    @on(InsertTransitionMsg)
    def insert(self, msg: InsertTransitionMsg) -> None:
        self._replay.insert(
            msg.obs,
            msg.state,
            msg.available,
            msg.actions,
            msg.reward,
            msg.terminated,
            msg.lengths,
            epsilon=msg.epsilon,
        )

    @on(SampleBatchMsg)
    async def sample(self, msg: SampleBatchMsg) -> None:
        sampled = self.draw(msg)
        batch = sampled.batch
        await msg.trainer.tell(
            BatchTrainingDataMsg(
                number=msg.number,
                obs=batch.obs,
                state=batch.state,
                available=batch.available,
                actions=batch.actions,
                reward=batch.reward,
                lengths=batch.lengths,
                terminated=batch.terminated,
                epsilon=batch.epsilon,
                weights=batch.weights,
                indices=sampled.indices,
                generations=sampled.generations,
            )
        )

    def draw(self, msg: SampleBatchMsg) -> Sampled:
        """Return the episodes that are sent for `msg`; a manager of another kind may draw others."""
        return self._replay.sample(msg.batch_size, self.rng)

    @on(UpdatePriorityMsg)
    def update(self, msg: UpdatePriorityMsg) -> None:
        self._replay.update(msg.indices, msg.generations, msg.priorities)

    @on(SaveCheckpointMsg)
    async def save(self, msg: SaveCheckpointMsg) -> str:
        values = {"rng": self.rng.bit_generator.state}
        folder = run_state.write(self.run_directory, msg.env_steps, self.me.address, values)
        await self.offload(self._replay.save, self._experience(folder))
        return str(folder)

    def _experience(self, folder: Path) -> Path:
        return run_state.companion(folder, self.me.address, "replay")
