"""PQN (Gallici et al. 2024): Q-learning with many environments, λ-returns and LayerNorm alone. With teams by VDN.

There is neither a replay buffer nor a target network: the network that has played a round of steps learns from it, and
the round is dropped. All processes of a run import these classes for their parameters, which are flags; torch is
imported when a policy is made.
"""

from typing import Annotated, Any, ClassVar

from pydantic import Field

from components.envs.base import EnvSpec
from components.policies.in_rounds import InRounds
from components.policies.pqn_acting import QSizes
from orchestra import UsageError


class Pqn(InRounds):
    """PQN. Several agents share the network, and each learns independently.

    Exploration is ε-greedy by the flags of the experiment. The optimiser is RAdam (Liu et al. 2020).

    Raises:
        UsageError: observations are not flat, or actions not discrete.
    """

    rollout_length: ClassVar[int | None] = 64
    vdn: ClassVar[bool] = False

    def __init__(
        self,
        spec: EnvSpec,
        *,
        seed: int,
        device: str = "cpu",
        learning_rate: Annotated[float, Field(gt=0, description="of RAdam")] = 2.5e-4,
        anneal: Annotated[int, Field(ge=0, description="updates in which the rate falls to 0; 0 for a constant")] = 0,
        epochs: Annotated[int, Field(ge=1, description="times that each step is learned from")] = 4,
        minibatches: Annotated[int, Field(ge=1, description="gradient steps of an epoch")] = 16,
        gamma: Annotated[float, Field(ge=0, le=1, description="discount")] = 0.99,
        td_lambda: Annotated[float, Field(ge=0, le=1, description="λ of the returns")] = 0.95,
        grad_norm_clip: Annotated[float, Field(gt=0, description="largest norm of a gradient")] = 10.0,
        reward_scale: Annotated[float, Field(gt=0, description="factor of rewards in targets")] = 1.0,
        hidden_size: Annotated[int, Field(ge=1, description="units of each layer")] = 128,
        layers: Annotated[int, Field(ge=1, description="layers, each with LayerNorm")] = 2,
        recurrent: Annotated[bool, Field(description="a GRU behind the layers")] = False,
    ) -> None:
        learning: dict[str, Any] = {
            "learning_rate": learning_rate,
            "anneal": anneal,
            "epochs": epochs,
            "minibatches": minibatches,
            "gamma": gamma,
            "td_lambda": td_lambda,
            "grad_norm_clip": grad_norm_clip,
            "reward_scale": reward_scale,
        }
        self._learn_as(QSizes(spec, hidden_size, layers, recurrent), learning, seed=seed, device=device)

    def _learn_as(self, sizes: QSizes, learning: dict[str, Any], *, seed: int, device: str) -> None:
        from components.policies.pqn_learning import PqnLearner, PqnLearning  # imports torch

        self._wrap(PqnLearner(sizes, PqnLearning(**learning, vdn=self.vdn), seed=seed, device=device))


class PqnVdn(Pqn):
    """PQN of a team, whose value is the sum of its agents' (VDN, Sunehag et al. 2018).

    Raises:
        UsageError: observations are not flat, actions not discrete, or agents have rewards of their own.
    """

    vdn: ClassVar[bool] = True

    def __init__(
        self,
        spec: EnvSpec,
        *,
        seed: int,
        device: str = "cpu",
        learning_rate: Annotated[float, Field(gt=0, description="of RAdam")] = 2.5e-4,
        anneal: Annotated[int, Field(ge=0, description="updates in which the rate falls to 0; 0 for a constant")] = 0,
        epochs: Annotated[int, Field(ge=1, description="times that each step is learned from")] = 4,
        minibatches: Annotated[int, Field(ge=1, description="gradient steps of an epoch")] = 8,
        gamma: Annotated[float, Field(ge=0, le=1, description="discount")] = 0.99,
        td_lambda: Annotated[float, Field(ge=0, le=1, description="λ of the returns")] = 0.85,
        grad_norm_clip: Annotated[float, Field(gt=0, description="largest norm of a gradient")] = 1.0,
        reward_scale: Annotated[float, Field(gt=0, description="factor of rewards in targets")] = 1.0,
        hidden_size: Annotated[int, Field(ge=1, description="units of each layer")] = 128,
        layers: Annotated[int, Field(ge=1, description="layers, each with LayerNorm")] = 2,
        recurrent: Annotated[bool, Field(description="a GRU behind the layers")] = False,
    ) -> None:
        if spec.schema.by_name["reward"].agents:
            hint = "--rewards mean makes one of all"
            raise UsageError(f"PQN with VDN needs one reward of the team, which {spec.name} does not have; {hint}")
        learning: dict[str, Any] = {
            "learning_rate": learning_rate,
            "anneal": anneal,
            "epochs": epochs,
            "minibatches": minibatches,
            "gamma": gamma,
            "td_lambda": td_lambda,
            "grad_norm_clip": grad_norm_clip,
            "reward_scale": reward_scale,
        }
        self._learn_as(QSizes(spec, hidden_size, layers, recurrent), learning, seed=seed, device=device)
