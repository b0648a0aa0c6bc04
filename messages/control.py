"""Control messages: joining, pacing, evaluating, saving, and the progress of a run."""

from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from orchestra import Axes, Lane, Message, Ref, Request


class JoinMsg(Message):
    """An actor joins its upstream: a worker its proxy; a proxy, or a worker without proxy, the Orchestrator.

    It receives the latest parameters in return, and a `CollectMsg` as soon as it may send an episode.
    """

    role: Literal["worker", "proxy"]
    ref: Ref[Any]
    environments: int
    """Number of environments of a worker; 0 for a proxy, whose `WorkerCountMsg` has those of its workers."""


class ClaimRoleMsg(Request[str]):
    """An actor joins the Orchestrator in a role that exists once in a run; the Trainer does so before it publishes.

    The answer is empty, or the reason for a rejection: another actor has the role.
    """

    role: Literal["trainer", "evaluator"]
    ref: Ref[Any]


class WorkerCountMsg(Message):
    """The current number of a proxy's workers."""

    proxy: Ref[Any]
    workers: int
    environments: int
    """Number of environments of these workers."""


class CollectMsg(Message):
    """Collect experience for a number of episodes, or pause; sent downstream.

    Episodes, other segments, or steps are counted from the recipient's last `JoinMsg` on.
    """

    lane: ClassVar[Lane] = Lane.LATEST

    episodes: int | None
    """Episodes that the recipient may send beyond those `received`: its credit. None for any number, 0 to pause."""
    received: int
    """Episodes that the sender has received from the recipient."""
    unit: Literal["segments", "steps"]
    """Unit of the counts. With steps, environments in lock-step make exactly as many steps as the credit allows, and
    all segments end with the last; other environments may make a few more."""

    def credit(self, sent: int) -> int | None:
        """Return the number of further episodes that a recipient may send after `sent`; None for any number."""
        return None if self.episodes is None else max(self.episodes - max(sent - self.received, 0), 0)


PAUSE = CollectMsg(episodes=0, received=0, unit="segments")


class EvaluationResultMsg(Message):
    """Result of an evaluation."""

    version: int
    """Version of the parameters that played."""
    env_steps: int
    """Environment steps of the run at which these parameters were first evaluated."""
    episodes: int
    win_rate: float
    mean_return: float
    mean_length: float
    final: bool
    """True for the evaluation of the best parameters at the end of the run."""


class EvaluateMsg(Message):
    """Evaluate these parameters: play greedily, in environments made for it."""

    version: int
    """Version of the parameters."""
    params: Annotated[NDArray[np.float32], Axes("float32", "parameters")]
    episodes: int
    env_steps: int
    """Environment steps of the run at which these parameters were first evaluated."""
    seed: int
    """Seed of the environments and of all other random numbers."""
    final: bool
    """True for the evaluation of the best parameters at the end of the run."""


class TrainResultMsg(Message):
    """Result of learning from one batch."""

    number: int
    """Number of the batch, from 1."""
    seconds: float
    """Duration in seconds."""
    metrics: tuple[tuple[str, float], ...]
    """Metrics of the algorithm by name, sorted."""


class NotSavedMsg(Message):
    """Reply to `SaveCheckpointMsg`: the checkpoint cannot be written. The sender continues as if it was not asked."""

    error: str
    """The error of the operating system, in words."""


class SaveCheckpointMsg(Request[str | NotSavedMsg]):
    """Save everything that a resumed run needs, and answer with the path of the file or folder."""

    lane: ClassVar[Lane] = Lane.SOLICITED

    env_steps: int


class StateSavedMsg(Message):
    """Reply to `SaveStateMsg`: the state is saved. The sender stays paused until the next `CollectMsg`."""

    ref: Ref[Any]
    error: str
    """Error in words if the state cannot be written; empty if it is saved."""


class SaveStateMsg(Message):
    """Pause and save the state for the checkpoint after `env_steps` steps; sent downstream."""

    env_steps: int
    reply_to: Ref[StateSavedMsg]


class ProgressMsg(Message):
    """Progress of the run, from the Orchestrator. A newer one replaces an unread one."""

    lane: ClassVar[Lane] = Lane.LATEST

    state: Literal["starting", "collecting", "training", "saving", "done", "interrupted", "stopped", "failed"]
    env_steps: int
    goal_steps: int
    episodes: int
    updates: int
    train_win_rate: float | None
    train_return: float | None
    train_length: float | None
    epsilon: float | None
    params_lag: int | None
    """Largest policy lag of a step in the last experience, in versions."""
    params_lags: tuple[int, ...]
    """Environment steps so far by policy lag: 0, 1, 2 to 3, 4 to 7, 8 to 15, 16 to 31, 32 or more versions."""
    dropped_episodes: int
    """Episodes dropped because of their policy lag, as `--drop-stale` allows."""
    workers: int
    metrics: tuple[tuple[str, float], ...]
    """Metrics of the newest `TrainResultMsg`, and `learner_s`, its seconds."""
    sync: tuple[tuple[str, float], ...]
    """Figures of the synchronisation of workers by name: versions, loads, and bytes of parameters and digests."""
