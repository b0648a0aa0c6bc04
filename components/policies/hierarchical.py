"""Hierarchical QMIX: an agent chooses a sub-task every few steps, and in each step an action of its sub-task.

The values of both levels are mixed to values of the team, and both levels learn together from the same episodes. As in
RODE (Wang et al. 2021) the upper level chooses among subsets of the actions every c steps, and both levels have a
mixing network; here the subsets are the environment's (`EnvSpec.subtasks`). All processes of a run import this class
for its parameters, which are flags; torch is imported when a policy is made.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from components.envs.base import EnvSpec
from components.policies.hierarchical_acting import Levels
from components.policies.wrapped import WrappedPolicy


class Hierq(WrappedPolicy):
    """QMIX on two levels. Exploration is ε-greedy on both, by the flags of the experiment.

    Raises:
        UsageError: the environment names no sub-tasks, or is no team with discrete actions.
        ValueError: an option is out of its range.
    """

    def __init__(
        self,
        spec: EnvSpec,
        *,
        seed: int,
        subtask_steps: Annotated[int, Field(ge=1, description="steps from one choice of sub-tasks to the next")] = 5,
        factored: Annotated[
            bool, Field(description="an action's value is a sum over its parts, where it has several")
        ] = True,
        mixing: Annotated[Literal["qmix", "vdn"], Field(description="of both levels over agents")] = "qmix",
        mixer_embed: Annotated[int, Field(ge=1, description="units of a mixing layer")] = 32,
        hypernet_size: Annotated[int, Field(ge=1, description="hidden units of hypernetworks")] = 64,
        double_q: Annotated[bool, Field(description="the online network picks what targets value")] = True,
        upper: Annotated[
            Literal["learned", "random"], Field(description="how sub-tasks are chosen; random is for ablations")
        ] = "learned",
        **options: Any,
    ) -> None:
        from components.policies.hierarchical_learning import HierarchicalLearner  # imports torch

        self._wrap(
            HierarchicalLearner(
                Levels(spec, subtask_steps, factored),
                mixing=mixing,
                mixer_embed=mixer_embed,
                hypernet_size=hypernet_size,
                double_q=double_q,
                upper=upper,
                seed=seed,
                **options,
            )
        )
