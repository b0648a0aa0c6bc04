"""Trainer: learns from batches and publishes its parameters."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from components.checkpoints import run_state
from components.checkpoints.policy_file import as_arrays, as_tensors, load_checkpoint, save_checkpoint
from components.digests import Digests
from components.envs.base import EnvSpec
from components.policies import devices
from components.policies.base import EpisodeBatch, TrainStepResult
from components.policies.checks import check_log_prob
from components.replay_buffers.storage import BatchMemory
from components.rollout import PolicyFactory
from components.synchronization import ALWAYS, SyncRule
from components.threads import with_threads, with_torch_threads
from messages import (
    BatchTrainingDataMsg,
    ClaimRoleMsg,
    LoadParamsMsg,
    NotSavedMsg,
    ProbesMsg,
    SaveCheckpointMsg,
    TrainResultMsg,
    UpdatePriorityMsg,
    VersionMsg,
)
from orchestra import Actor, Escalate, Ref, State, Supervision, UsageError, on


@dataclass(kw_only=True, eq=False, repr=False)
class Trainer(Actor[BatchTrainingDataMsg | SaveCheckpointMsg]):
    """A learning policy as an actor.

    A failure ends the run, because a restarted Trainer would lose everything learned without notice.

    Args:
        spec: sizes of the environment.
        policy: makes the policy.
        to: the Orchestrator.
        priorities_to: the TrajectoryManager if it samples by priority, else None.
        publish_interval: batches from one publication of parameters to the next.
        threads: threads that a gradient step may use. The results of this package's policies do not depend on it.
        sync: rule by which workers load parameters. If they compare policies, each publication has a digest.
        checks_log_prob: True to compare log-probabilities of experience with those of the policy, for segments of its
            present version. This takes a pass over each batch.
    """

    supervision: ClassVar[Supervision] = Escalate()

    spec: EnvSpec
    policy: PolicyFactory
    to: Ref[ClaimRoleMsg | LoadParamsMsg | TrainResultMsg | ProbesMsg | VersionMsg]
    priorities_to: Ref[UpdatePriorityMsg] | None = None
    publish_interval: int = 1
    threads: int = 1
    sync: SyncRule = ALWAYS
    checks_log_prob: bool = False

    def __post_init__(self) -> None:
        self._policy = with_torch_threads(self.threads, self.policy, self.spec, seed=int(self.rng.integers(1 << 31)))
        self._policy.prepare()
        self._version = 0
        self._digests = None if self.sync.measure is None else Digests(self.spec.schema, self._policy, self.rng)
        self._stale = 0  # segments too old to learn from
        self._checked = 0  # segments whose log-probabilities were compared
        self._memory = BatchMemory()
        self._published = False  # True if the present parameters are those of the version

    async def started(self) -> None:
        if (advice := devices.advice()) is not None:
            self.log.info(advice)
        if self.resume_from is not None:
            path = _policy_file(self.resume_from.parent.parent, self.resume_from.name)
            self._version = load_checkpoint(path, self._policy)["version"]
        # Before publishing: the parameters of a rejected Trainer must not reach any actor.
        rejection = await self.to.ask(ClaimRoleMsg(role="trainer", ref=self.me))
        if rejection:
            raise UsageError(rejection)
        await self._publish()

    def snapshot(self) -> State:
        return {
            "policy": as_arrays(self._policy.state_dict()),
            "version": self._version,
            "probes": None if self._digests is None else self._digests.probes,
            "stale": self._stale,
            "checked": self._checked,
            "published": self._published,
        }

    def restore(self, state: State) -> None:
        self._policy.load_state_dict(as_tensors(state["policy"]))
        self._version = state["version"]
        if self._digests is not None and state["probes"] is not None:
            self._digests.probes = ProbesMsg.model_validate(state["probes"])
        self._stale, self._checked, self._published = state["stale"], state["checked"], state["published"]

    @on(BatchTrainingDataMsg)
    async def train(self, msg: BatchTrainingDataMsg) -> None:
        batch = EpisodeBatch.of_rows(
            lengths=msg.lengths,
            terminated=msg.terminated,
            truncated=msg.truncated,
            versions=msg.versions,
            weights=msg.weights,
            per_frame=msg.per_frame.plain(),
            per_step=msg.per_step.plain(),
            per_segment=msg.per_segment.plain(),
            empty=self._memory.empty,
        )
        fresh = self._fresh(batch)
        since = self.clock.monotonic()
        learned = await self._learned(batch if fresh.all() else batch.select(fresh)) if fresh.any() else None
        seconds = self.clock.monotonic() - since
        if self.priorities_to is not None and learned is not None:
            names = {"indices": msg.indices[fresh], "generations": msg.generations[fresh]}
            await self.priorities_to.tell(UpdatePriorityMsg(**names, priorities=learned.priorities))
        metrics = {} if learned is None else dict(learned.metrics)
        if self._policy.max_staleness is not None:
            metrics["stale_segments"] = float(self._stale)
        if self.checks_log_prob:
            metrics["checked_segments"] = float(self._checked)
        if msg.number % self.publish_interval == 0 and learned is not None:
            self._version += 1
            await self._publish(batch)
        # After the parameters, so that the steps that it permits are played with the new version.
        await self.to.tell(TrainResultMsg(number=msg.number, seconds=seconds, metrics=tuple(sorted(metrics.items()))))

    def _fresh(self, batch: EpisodeBatch) -> NDArray[np.bool_]:
        """Return which segments (E,) are new enough to learn from, and count the others.

        No segment is too old if workers need not load each version: their rule then limits the lag.
        """
        most = self._policy.max_staleness if not self.sync.pulls else None
        fresh = np.ones(len(batch), np.bool_) if most is None else batch.staleness(self._version) <= most
        self._stale += int((~fresh).sum())
        return fresh

    async def _learned(self, batch: EpisodeBatch) -> TrainStepResult:
        if self.checks_log_prob and self._published:
            check = (check_log_prob, self._policy, batch, self._version)
            self._checked += await self.offload(with_threads, self.threads, *check)
        self._published = False
        return await self.offload(with_threads, self.threads, self._policy.learn, batch)

    @on(SaveCheckpointMsg)
    async def checkpoint(self, msg: SaveCheckpointMsg) -> str | NotSavedMsg:
        if self.run_directory is None:
            raise UsageError("this run keeps no files, so there is no place for a checkpoint")
        path = _policy_file(self.run_directory, run_state.checkpoint_name(msg.env_steps))
        try:
            await self.offload(save_checkpoint, path, self._policy, self._version, msg.env_steps)
        except OSError as error:
            return NotSavedMsg(error=run_state.reason(error))
        return str(path)

    async def _publish(self, batch: EpisodeBatch | None = None) -> None:
        """Publish the parameters; if a batch was learned from and workers compare policies, first their digest."""
        if self._digests is not None and batch is not None:
            made = (self._version, batch)
            for message in await self.offload(with_threads, self.threads, self._digests.make, *made):
                await self.to.tell(message)
        self._published = True
        await self.to.tell(LoadParamsMsg(version=self._version, params=self._policy.params(), env_steps=None))


def _policy_file(run_directory: Path, name: str) -> Path:
    return run_directory / "checkpoints" / f"{name}.pt"
