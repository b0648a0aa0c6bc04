"""Acting on two levels without torch: an agent chooses a sub-task every c steps, and in each step an action of it.

Letters in shapes: n copies, A agents, S sub-tasks, U actions, V outputs of the network, H hidden units.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from components.envs.base import EnvSpec
from components.experience import EPSILON, FieldSpec
from components.policies.acting import (
    HIDDEN_SIZE,
    RECURRENT_PROBE_FRAMES,
    Acted,
    ActingPolicy,
    RecurrentActing,
    epsilon_greedy,
)
from orchestra import UsageError

Upper = Literal["learned", "random"]


@dataclass(frozen=True)
class Levels:
    """Layout of the values of both levels in the outputs of one recurrent network, which all agents share.

    The first S outputs are values of the sub-tasks. Then each sub-task has values of its actions: one for each action,
    or, if factored, one for each index of each axis of `EnvSpec.action_grid`; their sum is the action's value (Tavakoli
    et al. 2018). So all sub-tasks share one encoding of the history, as the roles of RODE (Wang et al. 2021) do.

    Raises:
        UsageError: the environment names no sub-tasks, has no such grid, or is not a team with discrete actions.
    """

    spec: EnvSpec
    subtask_steps: int
    """c."""
    factored: bool
    """True if values of actions are sums over their parts; no effect if actions have no parts."""

    def __post_init__(self) -> None:
        spec = self.spec
        if not spec.subtasks:
            raise UsageError(f"hierarchical QMIX needs sub-tasks (EnvSpec.subtasks), which {spec.name} does not have")
        if spec.fields:
            raise UsageError(f"hierarchical QMIX needs a team with discrete actions, which {spec.name} is not")
        for task in spec.subtasks:
            if not task.actions or not 0 <= min(task.actions) <= max(task.actions) < spec.n_actions:
                raise UsageError(
                    f"sub-task {task.name!r} of {spec.name} must have actions of 0 to {spec.n_actions - 1}"
                )

    @property
    def n_subtasks(self) -> int:
        """S."""
        return len(self.spec.subtasks)

    @property
    def grid(self) -> tuple[int, ...]:
        """Sizes of the parts of an action."""
        return self.spec.action_grid if self.factored and self.spec.action_grid else (self.spec.n_actions,)

    @cached_property
    def network_spec(self) -> EnvSpec:
        """The environment as seen by the network, with V "actions"."""
        return replace(self.spec, n_actions=self.n_subtasks * (1 + sum(self.grid)))

    @cached_property
    def members(self) -> NDArray[np.bool_]:
        """(S, U), mask of the actions of each sub-task."""
        members = np.zeros((self.n_subtasks, self.spec.n_actions), np.bool_)
        for row, task in zip(members, self.spec.subtasks, strict=True):
            row[list(task.actions)] = True
        return members

    @cached_property
    def parts(self) -> NDArray[np.int64]:
        """(S, U, m): the outputs whose sum is the value of each action in each sub-task."""
        axes = np.unravel_index(np.arange(self.spec.n_actions), self.grid)
        starts = np.cumsum([0, *self.grid[:-1]])
        within = np.stack([start + axis for start, axis in zip(starts, axes, strict=True)], -1)
        first = self.n_subtasks + sum(self.grid) * np.arange(self.n_subtasks)
        return np.asarray(first[:, None, None] + within)

    def offered(self, available: NDArray[np.bool_], subtasks: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return the available actions (…, U) of each agent's sub-task; all available ones if it has none of them.

        Args:
            available: (…, U).
            subtasks: (…).
        """
        offered = available & self.members[subtasks]
        return np.where(offered.any(-1, keepdims=True), offered, available)

    def done(self, subtasks: NDArray[np.int64], actions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the network's input for the last action: the output number of the action's last part, or -1."""
        return np.where(actions < 0, -1, self.parts[subtasks, actions, -1])

    @property
    def fields(self) -> dict[str, FieldSpec]:
        """The policy's fields of a transition: ε, and the sub-task of each agent."""
        return {**EPSILON, "subtask": FieldSpec((), "int64", "step", agents=True, n_values=(self.n_subtasks,))}


class HierarchicalActing(ActingPolicy):
    """Acts ε-greedily on both levels. Its recurrent state has two more numbers: the sub-task, and its age in steps.

    All agents choose a sub-task in the first step of an episode, and then every c steps.

    Args:
        levels: as the learner's.
        hidden_size: H.
        upper: "random" draws sub-tasks uniformly, for any ε.
    """

    probe_frames = RECURRENT_PROBE_FRAMES

    def __init__(self, levels: Levels, *, hidden_size: int = HIDDEN_SIZE, upper: Upper = "learned") -> None:
        self.levels, self.upper = levels, upper
        self.fields = levels.fields
        self._network = RecurrentActing(levels.network_spec, epsilon_greedy, hidden_size=hidden_size)

    def initial_hidden(self, n_envs: int) -> NDArray[np.float32]:
        return np.zeros((n_envs, self.levels.spec.n_agents, self._network.hidden_size + 2), np.float32)

    def params(self) -> NDArray[np.float32]:
        return self._network.params()

    def load(self, params: NDArray[np.float32]) -> None:
        self._network.load(params)

    def act_on(
        self,
        frames: Mapping[str, NDArray[Any]],
        last_actions: NDArray[Any],
        hidden: NDArray[np.float32],
        *,
        epsilon: float,
        rng: np.random.Generator,
    ) -> Acted:
        levels, available = self.levels, np.asarray(frames["available"])
        said, after = self._said(frames, last_actions, hidden)
        chosen = self._chosen(said[..., : levels.n_subtasks], epsilon, rng)
        subtasks, q, state = self._lower(said, after, chosen, hidden)
        offered = levels.offered(available, subtasks)
        actions = epsilon_greedy(np.where(offered, q, -np.inf), offered, epsilon, rng)
        return Acted(actions, state, {"subtask": subtasks})

    def outputs(
        self, frames: Mapping[str, NDArray[Any]], last_actions: NDArray[Any], hidden: NDArray[np.float32]
    ) -> tuple[Mapping[str, NDArray[Any]], NDArray[np.float32]]:
        """Return the values of all actions in each agent's sub-task. A sub-task that begins is the greedy one."""
        said, after = self._said(frames, last_actions, hidden)
        _, q, state = self._lower(said, after, said[..., : self.levels.n_subtasks].argmax(-1), hidden)
        return {"logits": q}, state

    def _said(
        self, frames: Mapping[str, NDArray[Any]], last_actions: NDArray[Any], hidden: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the network's outputs (n, A, V) and its next state (n, A, H)."""
        memory, before = hidden[..., :-2], hidden[..., -2].astype(np.int64)
        told = self.levels.done(before, np.asarray(last_actions))
        return self._network.values(frames["obs"], told, memory)

    def _lower(
        self,
        said: NDArray[np.float32],
        after: NDArray[np.float32],
        chosen: NDArray[np.int64],
        hidden: NDArray[np.float32],
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
        """Return sub-tasks (n, A), values of their actions (n, A, U), and the next recurrent state.

        Args:
            said: outputs of the network.
            after: its next state.
            chosen: (n, A), new sub-tasks, used where the previous one has ended.
            hidden: the recurrent state before the step.
        """
        levels, age = self.levels, hidden[..., -1]
        subtasks = np.where(age == 0.0, chosen, hidden[..., -2].astype(np.int64))
        values = np.take_along_axis(said[..., None, :], levels.parts[subtasks].reshape(*subtasks.shape, 1, -1), -1)
        q = values.reshape(*subtasks.shape, levels.spec.n_actions, -1).sum(-1)
        state = np.concatenate([after, subtasks[..., None], ((age + 1) % levels.subtask_steps)[..., None]], -1)
        return subtasks, q, state.astype(np.float32)

    def _chosen(self, values: NDArray[np.float32], epsilon: float, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return new sub-tasks (n, A), by their values (n, A, S)."""
        everything = np.ones(values.shape, np.bool_)
        return epsilon_greedy(values, everything, 1.0 if self.upper == "random" else epsilon, rng)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.levels.spec.name}>"


def hierarchical_acting(
    *, subtask_steps: int, factored: bool
) -> Callable[[EnvSpec, Mapping[str, Any]], HierarchicalActing]:
    """Return a function that makes the acting side of `Hierq` with these defaults."""

    def make(spec: EnvSpec, options: Mapping[str, Any]) -> HierarchicalActing:
        levels = Levels(spec, options.get("subtask_steps", subtask_steps), options.get("factored", factored))
        upper = options.get("upper", "learned")
        return HierarchicalActing(levels, hidden_size=options.get("hidden_size", HIDDEN_SIZE), upper=upper)

    return make
