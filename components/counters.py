"""What a run has done so far, as its Orchestrator counts it."""

from collections import deque
from typing import Any, Literal

import numpy as np

from messages import InsertTransitionMsg, ProgressMsg
from orchestra import State

RECENT_EPISODES = 100
Phase = Literal["starting", "collecting", "training", "saving", "done"]


class RunCounters:
    """Counts steps, episodes and gradient steps, and keeps what the last episodes were like."""

    def __init__(self) -> None:
        self.env_steps = 0
        self.episodes = 0
        self.updates = 0
        """Gradient steps."""
        self.metrics: tuple[tuple[str, float], ...] = ()
        """What the Trainer said of the last of them."""
        self._recent: deque[tuple[bool, float, int]] = deque(maxlen=RECENT_EPISODES)
        self._epsilon: float | None = None
        self._lag: int | None = None

    def count(self, msg: InsertTransitionMsg, version: int | None) -> None:
        """Count episodes that came in; `version` is that of the newest parameters, if there are any."""
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
        """Return where the run stands on its way to `goal` steps; without a `phase`, the one that its counts say."""
        won, total, length = zip(*self._recent, strict=True) if self._recent else ((), (), ())
        return ProgressMsg(
            state=phase or ("training" if self.updates else "collecting" if self.episodes else "starting"),
            env_steps=self.env_steps,
            goal_steps=goal,
            episodes=self.episodes,
            updates=self.updates,
            train_win_rate=_mean(won),
            train_return=_mean(total),
            train_length=_mean(length),
            epsilon=self._epsilon,
            params_lag=self._lag,
            workers=workers,
            metrics=self.metrics,
        )

    def values(self) -> dict[str, Any]:
        """Return all of it, by name."""
        return {
            "env_steps": self.env_steps,
            "episodes": self.episodes,
            "updates": self.updates,
            "recent": list(self._recent),
            "epsilon": self._epsilon,
            "lag": self._lag,
            "metrics": self.metrics,
        }

    def hold(self, values: State) -> None:
        """Count on from what `values` returned."""
        self.env_steps, self.episodes, self.updates = values["env_steps"], values["episodes"], values["updates"]
        self._recent.extend((won, total, length) for won, total, length in values["recent"])
        self._epsilon, self._lag = values["epsilon"], values["lag"]
        self.metrics = tuple((name, value) for name, value in values["metrics"])


def _mean(values: tuple[float, ...]) -> float | None:
    return sum(values) / len(values) if values else None
