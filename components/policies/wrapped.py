"""Policy classes that need torch only when a policy is made. All processes of a run import them for their flags."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from components.policies.acting import Acted
from components.policies.base import EpisodeBatch, Policy, TrainStepResult

if TYPE_CHECKING:
    from components.policies.modules import TwoSidedPolicy


class WrappedPolicy(Policy):
    """A policy that delegates everything to its `learner`, which needs torch.

    A subclass makes the learner in its constructor, and passes it to `_wrap`.
    """

    learner: "TwoSidedPolicy"

    def _wrap(self, learner: "TwoSidedPolicy") -> None:
        self.learner = learner
        self.fields, self.probe_frames = learner.fields, learner.probe_frames

    def prepare(self) -> None:
        self.learner.prepare()

    def learn(self, batch: EpisodeBatch) -> TrainStepResult:
        return self.learner.learn(batch)

    def log_prob(self, batch: EpisodeBatch) -> NDArray[np.float32] | None:
        return self.learner.log_prob(batch)

    def params(self) -> NDArray[np.float32]:
        return self.learner.params()

    def load(self, params: NDArray[np.float32]) -> None:
        self.learner.load(params)

    def state_dict(self) -> dict[str, Any]:
        return self.learner.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.learner.load_state_dict(state)

    def initial_hidden(self, n_envs: int) -> NDArray[np.float32]:
        return self.learner.acting.initial_hidden(n_envs)

    def act_on(
        self,
        frames: Mapping[str, NDArray[Any]],
        last_actions: NDArray[Any],
        hidden: NDArray[np.float32],
        *,
        epsilon: float,
        rng: np.random.Generator,
    ) -> Acted:
        return self.learner.acting.act_on(frames, last_actions, hidden, epsilon=epsilon, rng=rng)

    def last_frame(
        self, frames: Mapping[str, NDArray[Any]], last_actions: NDArray[Any], hidden: NDArray[np.float32]
    ) -> Mapping[str, NDArray[Any]]:
        return self.learner.acting.last_frame(frames, last_actions, hidden)

    def outputs(
        self, frames: Mapping[str, NDArray[Any]], last_actions: NDArray[Any], hidden: NDArray[np.float32]
    ) -> tuple[Mapping[str, NDArray[Any]], NDArray[np.float32]]:
        return self.learner.acting.outputs(frames, last_actions, hidden)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.learner.spec.name} after {self.learner.updates} updates>"
