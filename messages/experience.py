"""Up: what the workers lived through."""

from typing import Annotated, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from orchestra import Axes, Message


class InsertTransitionMsg(Message):
    """Whole episodes of a team, back to back.

    Episode e of length T has T steps (an action of each agent, a reward) and T+1 frames (what was seen before each
    step, and after the last). `frames` is the sum of all T+1, `steps` the sum of all T. Nothing is padded.
    """

    obs: Annotated[NDArray[np.float32], Axes("float32", "frames", "agents", "features")]
    state: Annotated[NDArray[np.float32], Axes("float32", "frames", "state")]
    available: Annotated[NDArray[np.bool_], Axes("bool", "frames", "agents", "actions")]
    actions: Annotated[NDArray[np.int64], Axes("int64", "steps", "agents")]
    reward: Annotated[NDArray[np.float32], Axes("float32", "steps")]
    lengths: Annotated[NDArray[np.int32], Axes("int32", "episodes")]
    terminated: Annotated[NDArray[np.bool_], Axes("bool", "episodes")]
    """False where the episode was cut at its limit, so that its last frame has a value."""
    won: Annotated[NDArray[np.bool_], Axes("bool", "episodes")]
    versions: Annotated[NDArray[np.int64], Axes("int64", "episodes")]
    """The version of the parameters that chose the episode's last action."""
    epsilon: Annotated[NDArray[np.float32], Axes("float32", "episodes")]
    """Exploration rate at the end of each episode, 0 to 1."""

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
        """How many episodes these are."""
        return len(self.lengths)

    @property
    def steps(self) -> int:
        """How many environment steps they took together."""
        return len(self.reward)
