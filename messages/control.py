"""Control: who is there, who shall go on, how good the policy is, and what the Trainer did."""

from typing import Any, ClassVar, Literal

from orchestra import Lane, Message, Ref, Request


class JoinMsg(Message):
    """I am here: told upwards, by a worker to its proxy, by proxies, lone workers and the Trainer to the Orchestrator.

    Workers and proxies are sent the latest parameters and whether to run.
    """

    role: Literal["worker", "proxy", "trainer"]
    ref: Ref[Any]


class WorkerCountMsg(Message):
    """How many workers a proxy has now."""

    proxy: Ref[Any]
    workers: int


class SetCollectingMsg(Message):
    """Collect experience, or wait. Told downwards."""

    lane: ClassVar[Lane] = Lane.LATEST

    collecting: bool


class EvaluationResultMsg(Message):
    """How greedy play went."""

    version: int
    """The parameters that played."""
    env_steps: int
    """Of the run, when the evaluation was asked for."""
    episodes: int
    win_rate: float
    mean_return: float
    mean_length: float


class EvaluateMsg(Message):
    """Play greedily, with the newest parameters at hand, in environments of your own."""

    episodes: int
    env_steps: int
    reply_to: Ref[EvaluationResultMsg]


class TrainResultMsg(Message):
    """One gradient step was made."""

    number: int
    """The number of its batch."""
    seconds: float
    """How long it took."""
    metrics: tuple[tuple[str, float], ...]
    """What the algorithm had to say, by name."""


class SaveCheckpointMsg(Request[str]):
    """Save everything that learning on needs, and answer with the file's path."""

    lane: ClassVar[Lane] = Lane.SOLICITED

    env_steps: int


class StateSavedMsg(Message):
    """What there was to save is saved, and nothing happens here until the pace is set anew."""

    ref: Ref[Any]


class SaveStateMsg(Message):
    """Stand still, save what you hold as it was after so many steps of the run, and say so. Told downwards."""

    env_steps: int
    reply_to: Ref[StateSavedMsg]


class ProgressMsg(Message):
    """How the run is doing, as the Orchestrator sees it. An unread older one gives way."""

    lane: ClassVar[Lane] = Lane.LATEST

    state: Literal["starting", "collecting", "training", "saving", "done"]
    env_steps: int
    goal_steps: int
    episodes: int
    updates: int
    train_win_rate: float | None
    train_return: float | None
    train_length: float | None
    epsilon: float | None
    params_lag: int | None
    workers: int
    metrics: tuple[tuple[str, float], ...]
    """The newest of the Trainer's."""
