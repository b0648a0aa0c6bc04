"""What an environment is: B copies of one game, stepped together, answering in arrays that are allocated once.

Shapes, here and in every environment: B copies, A agents, O observation size, S state size, U actions.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """The sizes that a policy and a replay buffer need to know of an environment."""

    name: str
    """The scenario, as its users call it: `3m`."""
    n_agents: int
    n_actions: int
    obs_size: int
    state_size: int
    episode_limit: int
    """Steps after which an episode is cut."""


class Env(ABC):
    """A batch of B copies of one environment. Each copy plays its own episode.

    The arrays below are the environment's own memory: `step` and `reset` overwrite them, so copy what must last.
    Reset is explicit: a copy whose episode ended keeps its last observation until `reset` names it, and stepping
    it before that raises `ValueError`. Copy i of B, seeded alike, behaves exactly as if it were alone.
    """

    spec: EnvSpec
    n_envs: int
    obs: NDArray[np.float32]  # (B, A, O)
    state: NDArray[np.float32]  # (B, S)
    available: NDArray[np.bool_]  # (B, A, U): at least one action of each agent is available
    reward: NDArray[np.float32]  # (B,): the team's, for the step just made
    terminated: NDArray[np.bool_]  # (B,): the episode reached its end, there is nothing to bootstrap from
    truncated: NDArray[np.bool_]  # (B,): it was cut at `episode_limit`; its last observation still has a value
    won: NDArray[np.bool_]  # (B,): set where it ended with a win

    def prepare(self) -> None:  # noqa: B027  # most have nothing to prepare
        """Do what takes long once on a machine, as compiling does. A run's first process does, before it starts others.

        It may block for as long as compiling takes.
        """

    @abstractmethod
    def reset(self, which: NDArray[np.bool_] | None = None) -> None:
        """Start a new episode in the copies that the mask `which` (B,) names; in all of them without one.

        Writes `obs`, `state` and `available` of these copies, and clears their `reward`, `terminated`, `truncated`
        and `won`.
        """

    @abstractmethod
    def step(self, actions: NDArray[np.int64]) -> None:
        """Make one step in every copy; `actions` has shape (B, A). Writes all arrays above.

        Raises:
            ValueError: an action that is not available, an action array of another shape, or a copy whose episode
                is over; nothing has been stepped then.
        """

    def snapshot(self) -> dict[str, NDArray[Any]] | None:
        """Return copies of the whole state, random generators included, for `restore`; None if that is not possible.

        By default it is not: the game runs elsewhere, and cannot be asked.
        """
        return None

    def restore(self, snapshot: dict[str, NDArray[Any]]) -> None:
        """Go on from a snapshot of an environment that was made with the same arguments.

        Raises:
            ValueError: it is the snapshot of something else; nothing has been changed then.
        """
        raise ValueError(f"{self!r} takes no snapshots")

    def failed_copies(self) -> NDArray[np.bool_] | None:
        """Return which copies (B,) lost their episode in the last step, by a crash; they are at the start of another.

        The default is None: no copy ever fails.
        """
        return None

    def close(self) -> None:  # noqa: B027 (most environments hold nothing, and need not say so)
        """Release processes, sockets and files. The default holds none."""
