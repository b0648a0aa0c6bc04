"""The interface of policies that learn, and the batches that they learn from.

Shapes: B copies of the environment, E episodes, T steps (the longest episode of the batch), A agents, O observation
size, S state size, U actions, H hidden size.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.envs.base import EnvSpec
from components.policies.acting import ActingPolicy


def item_shapes(spec: EnvSpec) -> dict[str, tuple[int, tuple[int, ...], np.dtype[Any]]]:
    """Return of each field of steps by how many it has more of them than there are steps, its shape and its dtype."""
    a, u = spec.n_agents, spec.n_actions
    return {
        "obs": (1, (a, spec.obs_size), np.dtype(np.float32)),
        "state": (1, (spec.state_size,), np.dtype(np.float32)),
        "available": (1, (a, u), np.dtype(np.bool_)),
        "actions": (0, (a,), np.dtype(np.int64)),
        "reward": (0, (), np.dtype(np.float32)),
    }


@dataclass(frozen=True, slots=True)
class EpisodeBatch:
    """Whole episodes, padded with zeros to the longest of them. Arrays may be read-only."""

    obs: NDArray[np.float32]  # (E, T+1, A, O)
    state: NDArray[np.float32]  # (E, T+1, S)
    available: NDArray[np.bool_]  # (E, T+1, A, U)
    actions: NDArray[np.int64]  # (E, T, A)
    reward: NDArray[np.float32]  # (E, T)
    lengths: NDArray[np.int32]  # (E,): steps of each episode, 1 to T; frames 0 to length are real
    terminated: NDArray[np.bool_]  # (E,): false where the episode was cut and its last frame has a value
    weights: NDArray[np.float32]  # (E,): importance weights of prioritised sampling; ones otherwise
    epsilon: NDArray[np.float32] | None = None  # (E,): exploration rate at the end of each episode; None for 0


@dataclass(frozen=True, slots=True)
class TrainStepResult:
    """The report of one gradient step."""

    metrics: Mapping[str, float]
    """`loss`, `grad_norm`, `q_taken`, `target`, `td_error` and further figures of the algorithm."""
    priorities: NDArray[np.float32]  # (E,): each episode's new priority, non-negative


class Policy(ActingPolicy):
    """A policy that also learns, from whole episodes.

    Workers receive the parameters of acting, as one flat float32 array (`params`, `load`). A checkpoint holds the
    state of learning (`state_dict`, `load_state_dict`).
    """

    def prepare(self) -> None:  # a policy may have nothing to prepare
        """Allocate and compile for learning. A learner calls this once, before its first batch."""

    @abstractmethod
    def learn(self, batch: EpisodeBatch) -> TrainStepResult:
        """Make one gradient step on `batch`."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the state of learning: networks, targets, optimisers, counters; tensors and plain values only."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state_dict` of an equal policy returned.

        Raises:
            ValueError: names or shapes differ; the policy is unchanged then.
        """
