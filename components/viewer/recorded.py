"""The common interface of the recordings of all games, so that the same code shows and saves them."""

from collections.abc import Sequence
from typing import Protocol


class Shown(Protocol):
    """The state after one step."""

    @property
    def step(self) -> int:
        """The number of the step; 0 is the start."""

    @property
    def reward(self) -> float:
        """The team's reward, summed over the episode so far."""

    @property
    def outcome(self) -> str:
        """How the episode ended, in the last frame; empty before."""

    @property
    def activity(self) -> int:
        """A measure of how much happens in the step."""


class Recorded(Protocol):
    """One episode. `figures.figure_of` and `screens.screen_of` draw it."""

    @property
    def frames(self) -> Sequence[Shown]:
        """One frame for each step, in the order of steps."""

    @property
    def stride(self) -> int:
        """Default number of steps from one frame of a film to the next."""

    def busiest(self) -> int:
        """Return the first step with the most activity: the one that a single picture shows."""


def watched(recorded: Recorded, stride: int | None) -> list[Shown]:
    """Return the frames of a film: one in every `stride` steps, by default the recording's own, and the last."""
    return [*recorded.frames[: -1 : stride or recorded.stride], recorded.frames[-1]]
