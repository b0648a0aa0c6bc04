"""What the recordings of all games have in common, so that they are shown and saved by the same code."""

from collections.abc import Sequence
from typing import Protocol


class Shown(Protocol):
    """The state after one step."""

    @property
    def step(self) -> int:
        """Its number; 0 is the start."""

    @property
    def reward(self) -> float:
        """The team's, summed over the episode so far."""

    @property
    def outcome(self) -> str:
        """How the episode ended, in the last frame; empty before."""

    @property
    def activity(self) -> int:
        """How much is going on."""


class Recorded(Protocol):
    """One episode. `figures.figure_of` and `screens.screen_of` draw it."""

    @property
    def frames(self) -> Sequence[Shown]:
        """One for each step, by its number."""

    @property
    def stride(self) -> int:
        """Steps from one frame of a film to the next, where nothing else is asked for."""

    def busiest(self) -> int:
        """Return the first step with the most activity: the one that a single picture shows."""


def watched(recorded: Recorded, stride: int | None) -> list[Shown]:
    """Return the frames of a film: one in every `stride` steps, by default the recording's own, and the last."""
    return [*recorded.frames[: -1 : stride or recorded.stride], recorded.frames[-1]]
