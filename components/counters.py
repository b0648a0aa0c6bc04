"""Run counters: the progress of a run as its Orchestrator counts it, and the events that are due."""

from collections import deque
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from components.replay_buffers.limiter import SampleToInsertRatio
from components.rounds import Rounds
from components.schedule import Interval
from components.sync_counters import SyncCounters
from messages import InsertTransitionMsg, LoadParamsMsg, ProgressMsg
from orchestra import PlayedMsg, State

RECENT_EPISODES = 100
"""Episodes over which the means of training are taken."""
LEAST_BUFFER = 4.0
"""Smallest error buffer of the limiter, in batches."""
LAGS = (0, 1, 2, 4, 8, 16, 32)
"""The least policy lag of each bin of the histogram, in versions. The last bin has no end."""
Phase = Literal["starting", "collecting", "training", "saving", "done", "interrupted", "stopped", "failed"]


class RunCounters:
    """Counts steps, episodes, batches and gradient steps, and keeps the results of the last episodes.

    Args:
        limiter: counts segments, such as whole episodes, as inserts and batches as samples; or the rounds.
        eval_interval: environment steps between two evaluations. The first is due at once.
        checkpoint_interval: environment steps between two checkpoints.
        drop_stale: largest policy lag of a segment's steps at which the segment is inserted; None to insert all.
    """

    def __init__(
        self,
        limiter: SampleToInsertRatio | Rounds,
        eval_interval: int,
        checkpoint_interval: int,
        *,
        drop_stale: int | None = None,
    ) -> None:
        self.limiter, self._drop_stale = limiter, drop_stale
        self.evaluation_due = Interval(eval_interval, next=0)
        self.checkpoint_due = Interval(checkpoint_interval, next=checkpoint_interval)
        self.env_steps = 0
        self.episodes = 0
        self.requested = 0
        """Batches requested for the Trainer."""
        self.updates = 0
        """Batches from which the Trainer has learned."""
        self.metrics: tuple[tuple[str, float], ...] = ()
        """The Trainer's metrics of the last learned batch."""
        self.sync = SyncCounters()
        """Counters of the versions that the workers load."""
        self._recent: deque[tuple[bool, float, int]] = deque(maxlen=RECENT_EPISODES)
        self._epsilon: float | None = None
        self._lag: int | None = None
        self._lags = np.zeros(len(LAGS), np.int64)
        self._dropped = 0
        self._played: dict[str, tuple[int, int | None]] = {}
        """Steps of each node, and the largest lag in its newest experience."""
        self._told = 0
        """Messages of experience since the last `PlayedMsg`."""

    @property
    def in_flight(self) -> int:
        """Batches that were requested and not yet learned from."""
        return self.requested - self.updates

    def set_error_buffer(self, per_environment: float | None, environments: int) -> None:
        """Set the limiter's error buffer in proportion to the environments that play; no change if none plays.

        Args:
            per_environment: batches of the error buffer per environment; None to keep the limiter's own.
            environments: number of environments that play at present.
        """
        if per_environment is not None and environments and isinstance(self.limiter, SampleToInsertRatio):
            self.limiter.set_error_buffer(max(per_environment * environments, LEAST_BUFFER))

    def request_batch(self, most_in_flight: int, batch_size: int) -> tuple[int, int] | None:
        """Count one more requested batch and return its number and its segments; None if no batch may be requested.

        Args:
            most_in_flight: largest number of batches in flight; no further batch is requested then. Rounds ignore it:
                they have a limit of their own.
            batch_size: segments of a batch; the batch of a round has all segments of the round.
        """
        if isinstance(self.limiter, Rounds):
            batch_size = self.limiter.end()
            if not batch_size:
                return None
        elif self.in_flight >= most_in_flight or not self.limiter.may_sample():
            return None
        else:
            self.limiter.sample()
        self.requested += 1
        return self.requested, batch_size

    def insertable(self, environments: int) -> int | None:
        """Return how many segments, or steps of a round, these environments may still deliver; None for any number."""
        if isinstance(self.limiter, Rounds):
            return self.limiter.allowance(environments, self.in_flight)
        return self.limiter.insertable()

    def count(self, msg: InsertTransitionMsg, newest: LoadParamsMsg | None) -> InsertTransitionMsg | None:
        """Count the segments of `msg`, and return those to insert; None if all of them are stale.

        Args:
            newest: the newest parameters; None before the first.
        """
        self.env_steps += msg.steps
        ended, reward = msg.terminated | msg.truncated, msg.per_step["reward"]
        self.episodes += int(ended.sum())
        if reward.ndim > 1:
            reward = reward.reshape(len(reward), -1).mean(1)
        totals = np.add.reduceat(reward, np.cumsum(msg.lengths) - msg.lengths) + msg.return_before
        lengths = msg.first + msg.lengths
        for won, total, length in zip(msg.won[ended], totals[ended], lengths[ended], strict=True):
            self._recent.append((bool(won), float(total), int(length)))
        epsilon = msg.per_segment.get("epsilon")
        self._epsilon = None if epsilon is None else float(epsilon[-1])
        fresh: InsertTransitionMsg | None = msg
        lag = None
        if newest is not None:
            lags = np.maximum(newest.version - msg.versions, 0)
            self._lag = lag = int(lags.max())
            self._lags += np.bincount(np.searchsorted(LAGS, lags, side="right") - 1, minlength=len(LAGS))
            fresh = self._without_stale(msg.model_copy(update={"newest_version": newest.version}), lags)
        if isinstance(self.limiter, Rounds):
            self.limiter.insert(msg.steps, 0 if fresh is None else fresh.segments)
        elif fresh is not None:
            self.limiter.insert(fresh.segments)
        node = (msg.source or msg.sender).partition("/")[0]
        self._played[node] = (self._played.get(node, (0, None))[0] + msg.steps, lag)
        self._told += 1
        return fresh

    def played(self, *, now: bool = False) -> PlayedMsg | None:
        """Return the steps of each node so far; None until as many messages have come as there are nodes.

        Messages are counted from the last call that returned something. So the cost per message of experience does not
        grow with the number of nodes.

        Args:
            now: return the steps if any node has played.
        """
        if not self._played or (self._told < len(self._played) and not now):
            return None
        self._told = 0
        return PlayedMsg(nodes=tuple((node, steps, lag) for node, (steps, lag) in self._played.items()))

    def _without_stale(self, msg: InsertTransitionMsg, lags: NDArray[np.integer[Any]]) -> InsertTransitionMsg | None:
        """Return the segments of `msg` that have no step with too large a lag, and count the others."""
        if self._drop_stale is None or self._lag is None or self._lag <= self._drop_stale:
            return msg
        begins = np.cumsum(msg.lengths) - msg.lengths
        is_fresh = np.maximum.reduceat(lags, begins) <= self._drop_stale
        self._dropped += int((~is_fresh).sum())
        return msg.select(is_fresh) if is_fresh.any() else None

    def progress(self, phase: Phase | None, goal: int, workers: int) -> ProgressMsg:
        """Return the progress towards `goal` steps; without a `phase` it follows from the counts."""
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
            params_lags=tuple(self._lags.tolist()),
            dropped_episodes=self._dropped,
            workers=workers,
            metrics=self.metrics,
            sync=self.sync.figures(),
        )

    def values(self) -> dict[str, Any]:
        """Return the plain values that a checkpoint keeps; no batch is in flight in a checkpoint."""
        return {
            "env_steps": self.env_steps,
            "episodes": self.episodes,
            "updates": self.updates,
            "recent": list(self._recent),
            "epsilon": self._epsilon,
            "lag": self._lag,
            "lags": self._lags.tolist(),
            "dropped": self._dropped,
            "played": [[node, *counts] for node, counts in self._played.items()],
            "told": self._told,
            "metrics": self.metrics,
            "sync": self.sync.values(),
            "next_evaluation": self.evaluation_due.next,
            "next_checkpoint": self.checkpoint_due.next,
            "limiter": self.limiter.counts,
        }

    def load(self, values: State) -> None:
        """Continue from the `values` of other counters."""
        self.env_steps, self.episodes = values["env_steps"], values["episodes"]
        self.requested = self.updates = values["updates"]
        self._recent.extend((won, total, length) for won, total, length in values["recent"])
        self._epsilon, self._lag = values["epsilon"], values["lag"]
        self._lags, self._dropped = np.array(values["lags"], np.int64), values["dropped"]
        self._played = {node: (steps, lag) for node, steps, lag in values["played"]}
        self._told = values["told"]
        self.metrics = tuple((name, value) for name, value in values["metrics"])
        self.sync.load(values["sync"])
        self.evaluation_due.next, self.checkpoint_due.next = values["next_evaluation"], values["next_checkpoint"]
        self.limiter.counts = values["limiter"]
