"""The pace of learning: amount and time of the experience of updates, in rounds, fresh episodes or a replay buffer."""

from dataclasses import dataclass

from components.counters import LEAST_BUFFER
from components.experience import ExperienceSchema
from components.replay_buffers import (
    EpisodeReplay,
    FreshEpisodes,
    PrioritizedEpisodeReplay,
    SampleToInsertRatio,
)
from components.rounds import Rounds
from components.training.choice import AlgorithmChoice
from components.trajectory_manager import ReplayBuffer
from orchestra import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Sizes of the played experience and of batches."""

    choice: AlgorithmChoice
    envs_per_worker: int
    batch_size: int
    """Episodes of a batch; 1 in rounds, whose batches have everything that was played."""
    segment_length: int | None
    """Steps after which workers send a part of an episode; None for whole episodes."""
    rollout_length: int | None
    """Steps of each environment in a round; None if there are no rounds."""
    overlap: bool
    """True if a round is played while the last one is learned."""
    buffer_size: int
    """Capacity of the replay buffer in episodes."""
    updates_per_episode: float
    """Gradient steps for each episode, off policy."""

    @classmethod
    def of_flags(
        cls,
        choice: AlgorithmChoice,
        *,
        envs_per_worker: int | None,
        batch_size: int | None,
        segment_length: int | None,
        rollout_length: int | None,
        overlap: bool,
        publish_interval: int,
        buffer_size: int,
        updates_per_episode: float,
    ) -> "Pace":
        """Return the pace for these flags. Flags that are None have defaults, which depend on the algorithm.

        Raises:
            UsageError: flags do not fit together.
        """
        in_rounds = choice.own_class is not None and choice.own_class.on_policy
        if rollout_length is not None and not in_rounds:
            raise UsageError(f"--rollout-length: {choice.name} does not learn in rounds of steps")
        if rollout_length is None and choice.own_class is not None:
            rollout_length = choice.own_class.rollout_length
        if rollout_length is None and overlap:
            raise UsageError("--overlap needs --rollout-length")
        if rollout_length is not None and (batch_size or segment_length or publish_interval != 1):
            raise UsageError(
                "--batch-size, --segment-length and --publish-interval are not for updates of --rollout-length steps, "
                "which are of all of them"
            )
        segment_length = segment_length or rollout_length
        if segment_length is not None and choice.own_class is None:
            raise UsageError(f"--segment-length: {choice.name} learns from whole episodes")
        batch_size = 1 if rollout_length is not None else batch_size or (16 if choice.on_policy else 32)
        if buffer_size < batch_size:
            raise UsageError(f"a replay buffer of {buffer_size} episodes never holds a batch of {batch_size}")
        return cls(
            choice=choice,
            envs_per_worker=envs_per_worker or (64 if rollout_length is None else 8),
            batch_size=batch_size,
            segment_length=segment_length,
            rollout_length=rollout_length,
            overlap=overlap,
            buffer_size=buffer_size,
            updates_per_episode=updates_per_episode,
        )

    @property
    def buffer_per_environment(self) -> float | None:
        """Batches of the limiter's error buffer for each environment; None if the limiter has its own.

        It has room for twice the episodes that all environments may deliver at once, so that the two sides need not
        wait for each other in steps.
        """
        return None if self.choice.on_policy else 2.0 * self.updates_per_episode

    def limiter(self, at_once: int, *, learning_starts: int) -> SampleToInsertRatio | Rounds:
        """Return the limiter, which decides when an update may be made, and when workers may play.

        Args:
            at_once: number of environments of the run.
            learning_starts: episodes before the first batch, off policy.
        """
        if self.rollout_length is not None:
            return Rounds(self.rollout_length, overlap=int(self.overlap))
        if self.choice.on_policy:
            # Workers stop when two batches wait, because COMA learns only from episodes of the current policy.
            return SampleToInsertRatio(1 / self.batch_size, min_size=self.batch_size, error_buffer=(0.0, 2.0))
        return SampleToInsertRatio(
            self.updates_per_episode,
            min_size=max(learning_starts, self.batch_size),
            error_buffer=max(2.0 * self.updates_per_episode * at_once, LEAST_BUFFER),
        )

    def replay_buffer(self, schema: ExperienceSchema, at_once: int, *, prioritized: bool) -> ReplayBuffer:
        """Return an empty buffer for experience of a schema.

        Raises:
            UsageError: `prioritized` is set, but experience is learned from only once.
        """
        if not self.choice.on_policy:
            return (PrioritizedEpisodeReplay if prioritized else EpisodeReplay)(schema, self.buffer_size)
        if prioritized:
            name = "COMA" if self.choice.is_coma else self.choice.name.rpartition(":")[2]
            raise UsageError(f"{name} learns from each episode once, so there is nothing to prioritise")
        # Waiting episodes must not be dropped: there is room for those on their way when workers have to wait.
        room = 4 * self.batch_size + 2 * at_once
        if self.rollout_length is not None:
            room = (2 + self.overlap) * (self.rollout_length + 1) * at_once
        return FreshEpisodes(schema, max(self.buffer_size, room))
