"""Run counters: how far a run is, as its Orchestrator counts, and what is due at that point."""

from collections import deque
from typing import Any, Literal

import numpy as np

from components.replay_buffers.limiter import SampleToInsertRatio
from components.schedule import Interval
from messages import InsertTransitionMsg, ProgressMsg
from orchestra import State

RECENT_EPISODES = 100
"""Episodes over which the means of training are taken."""
Phase = Literal["starting", "collecting", "training", "saving", "done", "interrupted", "stopped", "failed"]


class RunCounters:
    """Counts steps, episodes, batches and gradient steps, and keeps the results of the last episodes.

    Args:
        limiter: counts episodes as inserts and batches as samples.
        evaluation_due: when an evaluation is due.
        checkpoint_due: when a checkpoint is due.
    """

    def __init__(self, limiter: SampleToInsertRatio, evaluation_due: Interval, checkpoint_due: Interval) -> None:
        self.limiter, self.evaluation_due, self.checkpoint_due = limiter, evaluation_due, checkpoint_due
        self.env_steps = 0
        self.episodes = 0
        self.requested = 0
        """Batches requested for the Trainer."""
        self.updates = 0
        """Batches that the Trainer has learned."""
        self.metrics: tuple[tuple[str, float], ...] = ()
        """The Trainer's metrics of the last of them."""
        self._recent: deque[tuple[bool, float, int]] = deque(maxlen=RECENT_EPISODES)
        self._epsilon: float | None = None
        self._lag: int | None = None

    @property
    def in_flight(self) -> int:
        """Batches that were requested and are not learned yet."""
        return self.requested - self.updates

    def request_batch(self, most_in_flight: int) -> int | None:
        """Count one more requested batch and return its number; None if the limiter or `most_in_flight` forbids it."""
        if self.in_flight >= most_in_flight or not self.limiter.may_sample():
            return None
        self.limiter.sample()
        self.requested += 1
        return self.requested

    def count(self, msg: InsertTransitionMsg, version: int | None) -> None:
        """Count the episodes of `msg`; `version` is that of the newest parameters, None before the first."""
        self.limiter.insert(msg.episodes)
        self.env_steps += msg.steps
        self.episodes += msg.episodes
        ends = np.cumsum(msg.lengths)
        totals = np.add.reduceat(msg.reward, np.concatenate([[0], ends[:-1]]))
        for won, total, length in zip(msg.won, totals, msg.lengths, strict=True):
            self._recent.append((bool(won), float(total), int(length)))
        self._epsilon = float(msg.epsilon[-1])
        if version is not None:
            self._lag = version - int(msg.versions.min())

    def progress(self, phase: Phase | None, goal: int, workers: int) -> ProgressMsg:
        """Return the progress towards `goal` steps; without a `phase` the counts decide which one it is."""
        means = [sum(each) / len(each) for each in zip(*self._recent, strict=True)]
        won, total, length = means or (None, None, None)
        return ProgressMsg(
            state=phase or ("training" if self.updates else "collecting" if self.episodes else "starting"),
            env_steps=self.env_steps,
            goal_steps=goal,
            episodes=self.episodes,
            updates=self.updates,
            train_win_rate=won,
            train_return=total,
            train_length=length,
            epsilon=self._epsilon,
            params_lag=self._lag,
            workers=workers,
            metrics=self.metrics,
        )

    def values(self) -> dict[str, Any]:
        """Return the plain values that a checkpoint keeps, in which no batch is in flight."""
        return {
            "env_steps": self.env_steps,
            "episodes": self.episodes,
            "updates": self.updates,
            "recent": list(self._recent),
            "epsilon": self._epsilon,
            "lag": self._lag,
            "metrics": self.metrics,
            "next_evaluation": self.evaluation_due.next,
            "next_checkpoint": self.checkpoint_due.next,
            "limiter": [self.limiter.inserted, self.limiter.sampled, self.limiter.deleted],
        }

    def load(self, values: State) -> None:
        """Continue from the `values` of other counters."""
        self.env_steps, self.episodes = values["env_steps"], values["episodes"]
        self.requested = self.updates = values["updates"]
        self._recent.extend((won, total, length) for won, total, length in values["recent"])
        self._epsilon, self._lag = values["epsilon"], values["lag"]
        self.metrics = tuple((name, value) for name, value in values["metrics"])
        self.evaluation_due.next, self.checkpoint_due.next = values["next_evaluation"], values["next_checkpoint"]
        self.limiter.inserted, self.limiter.sampled, self.limiter.deleted = values["limiter"]
