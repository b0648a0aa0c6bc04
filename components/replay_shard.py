"""ReplayShard: the part of a federated replay buffer that lies on one host."""

from pathlib import Path
from typing import ClassVar

import numpy as np

from components.checkpoints import run_state
from components.checkpoints.array_file import CheckpointError
from components.checkpoints.part_files import files_of
from components.replay_buffers import ClientSample, PrioritizedEpisodeReplay
from components.trajectory_manager import segments_of
from messages import (
    DrawEpisodesMsg,
    InsertTransitionMsg,
    NotSavedMsg,
    SaveCheckpointMsg,
    ShardEpisodesMsg,
    ShardSizeMsg,
    UpdatePriorityMsg,
)
from orchestra import Actor, Escalate, Ref, Supervision, UsageError, freeze, on


class ReplayShard(Actor[InsertTransitionMsg | DrawEpisodesMsg | UpdatePriorityMsg | SaveCheckpointMsg]):
    """Holds the episodes that were played on its host, and draws from them for the learner.

    A failure ends its process. The shard of the next process is empty, or has the contents of the resumed checkpoint.

    Args:
        replay: the buffer, empty.
        to: the `FederatedTrajectories` of the run.
    """

    supervision: ClassVar[Supervision] = Escalate()

    def __init__(self, *, replay: PrioritizedEpisodeReplay, to: Ref[ShardSizeMsg | ShardEpisodesMsg]) -> None:
        self._replay = replay
        self._files = files_of(replay)
        self._to = to

    async def started(self) -> None:
        if self.resume_from is not None and (saved := run_state.find(self.resume_from, self.me.address)) is not None:
            self.rng.bit_generator.state = saved[0]["rng"]
            try:
                await self.offload(self._files.load, self._experience(self.resume_from))
            except (CheckpointError, OSError) as error:
                raise UsageError(f"the state of {self.me.address} does not fit this run: {error}") from error
        await self._report()

    @on(InsertTransitionMsg)
    async def insert(self, msg: InsertTransitionMsg) -> None:
        self._replay.insert(segments_of(msg))
        await self._report()

    @on(DrawEpisodesMsg)
    async def draw(self, msg: DrawEpisodesMsg) -> None:
        share = self._replay.share(msg.episodes, self.rng)
        names = {"indices": share.indices, "generations": share.generations, "weights": share.weights}
        await self._to.tell(
            ShardEpisodesMsg(
                size=self._size(share),
                episodes=self._episodes_of(share),
                **{name: freeze(array) for name, array in names.items()},
            )
        )

    @on(UpdatePriorityMsg)
    async def update(self, msg: UpdatePriorityMsg) -> None:
        self._replay.update(msg.indices, msg.generations, msg.priorities)
        await self._report()

    @on(SaveCheckpointMsg)
    async def save(self, msg: SaveCheckpointMsg) -> str | NotSavedMsg:
        values = {"rng": self.rng.bit_generator.state}
        try:
            folder = run_state.write(self.run_directory, msg.env_steps, self.me.address, values)
            await self.offload(self._files.save, self._experience(folder))
        except OSError as error:
            return NotSavedMsg(error=run_state.reason(error))
        return str(folder)

    async def _report(self) -> None:
        await self._to.tell(self._size(self._replay.share(0, self.rng)))

    def _size(self, share: ClientSample) -> ShardSizeMsg:
        return ShardSizeMsg(shard=self.me, total=share.total, held=share.held, inserted=share.inserted)

    def _experience(self, folder: Path) -> Path:
        return run_state.companion(folder, self.me.address, "replay")

    def _episodes_of(self, share: ClientSample) -> InsertTransitionMsg | None:
        """Return the episodes of a share, without the figures that only the Orchestrator counts."""
        count, schema = len(share.indices), self._replay.schema
        if not count:
            return None
        arrays = {name: freeze(array) for name, array in share.batch.items()}
        lengths = arrays["lengths"]
        return InsertTransitionMsg.of_episodes(
            per_frame={name: arrays[name] for name in schema.frames},
            per_step={name: arrays[name] for name in schema.steps},
            per_segment={},
            lengths=lengths,
            terminated=arrays["terminated"],
            won=freeze(np.zeros(count, np.bool_)),
            versions=freeze(np.full(int(lengths.sum()), -1, np.int32)),
            sender=self.me.address,
        )
