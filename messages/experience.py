"""Upwards: the experience of the workers."""

from typing import Annotated, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from orchestra import Axes, Message, freeze


class InsertTransitionMsg(Message):
    """Whole episodes of a team, back to back and without padding.

    An episode of length T has T steps (an action of each agent, a reward) and T+1 frames (observations before each step
    and after the last). `frames` is the sum of all T+1, `steps` the sum of all T.
    """

    obs: Annotated[NDArray[np.float32], Axes("float32", "frames", "agents", "features")]
    state: Annotated[NDArray[np.float32], Axes("float32", "frames", "state")]
    available: Annotated[NDArray[np.bool_], Axes("bool", "frames", "agents", "actions")]
    actions: Annotated[NDArray[np.int64], Axes("int64", "steps", "agents")]
    reward: Annotated[NDArray[np.float32], Axes("float32", "steps")]
    lengths: Annotated[NDArray[np.int32], Axes("int32", "episodes")]
    terminated: Annotated[NDArray[np.bool_], Axes("bool", "episodes")]
    """False for an episode that was cut at its limit: its last frame still has a value."""
    won: Annotated[NDArray[np.bool_], Axes("bool", "episodes")]
    versions: Annotated[NDArray[np.int32], Axes("int32", "steps")]
    """Version of the parameters that chose the actions of each step."""
    epsilon: Annotated[NDArray[np.float32], Axes("float32", "episodes")]
    """Exploration rate at the end of each episode, 0 to 1."""
    newest_version: int | None
    """Version of the newest parameters when the episodes reached the Orchestrator, which adds the number; None before.
    The *policy lag* of a step is this number less the step's own version."""
    sender: str
    """Address of the actor that tells this message, whose credit the episodes use: a worker, or the proxy that passes
    them on. Empty if no actor has told it yet."""
    source: str
    """Address of the actor by whose node the steps are counted: the first proxy on their way, that of the host where
    they were played, or the worker if there is none. Empty until the first proxy has passed them on."""

    @model_validator(mode="after")
    def _lengths_agree(self) -> Self:
        steps, episodes = int(self.lengths.sum()), len(self.lengths)
        if episodes == 0 or self.lengths.min() < 1:
            raise ValueError(f"lengths: expected one episode or more, of one step or more each, got {self.lengths}")
        if len(self.reward) != steps or len(self.obs) != steps + episodes:
            raise ValueError(
                f"{episodes} episodes of {steps} steps in all need {steps} steps and {steps + episodes} frames, "
                f"got {len(self.reward)} and {len(self.obs)}"
            )
        return self

    @property
    def episodes(self) -> int:
        """Number of episodes."""
        return len(self.lengths)

    @property
    def steps(self) -> int:
        """Number of environment steps of all episodes."""
        return len(self.reward)

    def select(self, episodes: NDArray[np.bool_]) -> "InsertTransitionMsg":
        """Return a message of the chosen episodes, (episodes,), of which there has to be one at least."""
        rows = {
            "frames": np.repeat(episodes, self.lengths + 1),
            "steps": np.repeat(episodes, self.lengths),
            "episodes": episodes,
        }
        arrays = {name: freeze(getattr(self, name)[rows[axes[0]]]) for name, axes in self.wire.axes}
        rest = {"newest_version": self.newest_version, "sender": self.sender, "source": self.source}
        return InsertTransitionMsg(**arrays, **rest)
