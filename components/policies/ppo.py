"""PPO (Schulman et al. 2017), and with teams IPPO (de Witt et al. 2020) and MAPPO (Yu et al. 2022).

All processes of a run import these classes for their parameters, which are flags; torch is imported when a policy is
made.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from components.envs.base import EnvSpec
from components.policies.in_rounds import InRounds
from components.policies.ppo_options import TEAM, CriticInput, Learning, Networks


class Clipped(InRounds):
    """A policy that learns like `OnPolicy`.

    Raises:
        ValueError: the environment does not have what the networks need.
    """

    uses_epsilon: ClassVar[bool] = False

    def _learn_as(self, spec: EnvSpec, networks: Networks, learning: Learning, *, seed: int, device: str) -> None:
        from components.policies.on_policy import OnPolicy  # imports torch

        self._wrap(OnPolicy(spec, networks, learning, seed=seed, device=device))


class Ppo(Clipped):
    """PPO as CleanRL and Stable-Baselines3 have it: separate networks, one optimiser, advantages by minibatch.

    Defaults are CleanRL's for discrete actions, with a constant rate.
    """

    rollout_length: ClassVar[int | None] = 128

    def __init__(
        self,
        spec: EnvSpec,
        *,
        seed: int,
        device: str = "cpu",
        learning_rate: Annotated[float, Field(gt=0, description="of Adam")] = 2.5e-4,
        anneal: Annotated[int, Field(ge=0, description="updates in which the rate falls to 0; 0 for a constant")] = 0,
        epochs: Annotated[int, Field(ge=1, description="times that each step is learned from")] = 4,
        minibatches: Annotated[int, Field(ge=1, description="gradient steps of an epoch")] = 4,
        clip: Annotated[float, Field(gt=0, description="of the ratio of probabilities")] = 0.2,
        value_clip: Annotated[bool, Field(description="clip the change of values too")] = True,
        entropy: Annotated[float, Field(ge=0, description="weight of the entropy")] = 0.01,
        value_coefficient: Annotated[float, Field(gt=0, description="weight of the value loss")] = 0.5,
        gamma: Annotated[float, Field(ge=0, le=1, description="discount")] = 0.99,
        gae_lambda: Annotated[float, Field(ge=0, le=1, description="λ of the advantages")] = 0.95,
        grad_norm_clip: Annotated[float, Field(gt=0, description="largest norm of a gradient")] = 0.5,
        advantages: Annotated[
            Literal["update", "minibatch"], Field(description="what advantages are normalised over")
        ] = "minibatch",
        value_units: Annotated[
            Literal["running", "popart", "real"], Field(description="how values are normalised, or real ones")
        ] = "real",
        time_limit: Annotated[
            Literal["bootstrap", "terminal"], Field(description="a truncated episode has a value behind it, or none")
        ] = "bootstrap",
        correction: Annotated[
            Literal["none", "v-trace"], Field(description="of steps of earlier parameters, as with --overlap")
        ] = "none",
        rho_max: Annotated[float, Field(gt=0, description="v-trace: largest weight of a step")] = 1.0,
        c_max: Annotated[float, Field(gt=0, description="v-trace: largest weight of what follows a step")] = 1.0,
        target_kl: Annotated[float | None, Field(gt=0, description="divergence that ends an update; or none")] = None,
        hidden_size: Annotated[int, Field(ge=1, description="units of each layer")] = 64,
        recurrent: Annotated[bool, Field(description="a GRU behind the layers")] = False,
        chunk_length: Annotated[int, Field(ge=1, description="recurrent: steps that are unrolled")] = 10,
        squash: Annotated[bool, Field(description="continuous: tanh of what is drawn; or clipped")] = False,
        normalise_obs: Annotated[bool, Field(description="by running statistics of observations")] = False,
    ) -> None:
        networks = Networks(hidden_size=hidden_size, recurrent=recurrent, squash=squash, normalise_obs=normalise_obs)
        learning = Learning(
            learning_rate=learning_rate,
            critic_learning_rate=None,
            anneal=anneal,
            epochs=epochs,
            minibatches=minibatches,
            clip=clip,
            value_clip=value_clip,
            entropy=entropy,
            value_coefficient=value_coefficient,
            gamma=gamma,
            gae_lambda=gae_lambda,
            grad_norm_clip=grad_norm_clip,
            huber=None,
            advantages=advantages,
            value_units=value_units,
            value_masks=True,
            time_limit=time_limit,
            correction=correction,
            rho_max=rho_max,
            c_max=c_max,
            target_kl=target_kl,
            chunk_length=chunk_length,
            gain=0.01,
        )
        self._learn_as(spec, networks, learning, seed=seed, device=device)


class Mappo(Clipped):
    """Agents that share an actor, and a critic that sees the state: PPO for teams, as Yu et al. (2022) have it.

    Defaults are theirs for SMAC's 3m, but for the critic's input, in which the state and the observation stand side by
    side.
    """

    critic_sees: ClassVar[CriticInput] = "agent-specific"
    rollout_length: ClassVar[int | None] = 400

    def __init__(
        self,
        spec: EnvSpec,
        *,
        seed: int,
        device: str = "cpu",
        learning_rate: Annotated[float, Field(gt=0, description="of the actor's Adam")] = 5e-4,
        critic_learning_rate: Annotated[float, Field(gt=0, description="of the critic's Adam")] = 5e-4,
        anneal: Annotated[int, Field(ge=0, description="updates in which the rates fall to 0; 0 for constants")] = 0,
        epochs: Annotated[int, Field(ge=1, description="times that each step is learned from")] = 15,
        minibatches: Annotated[int, Field(ge=1, description="gradient steps of an epoch")] = 1,
        clip: Annotated[float, Field(gt=0, description="of the ratio of probabilities")] = 0.2,
        value_clip: Annotated[bool, Field(description="clip the change of values too")] = True,
        entropy: Annotated[float, Field(ge=0, description="weight of the entropy")] = 0.01,
        gamma: Annotated[float, Field(ge=0, le=1, description="discount")] = 0.99,
        gae_lambda: Annotated[float, Field(ge=0, le=1, description="λ of the advantages")] = 0.95,
        grad_norm_clip: Annotated[float, Field(gt=0, description="largest norm of a gradient")] = 10.0,
        huber: Annotated[float, Field(gt=0, description="where the value loss becomes linear")] = 10.0,
        value_units: Annotated[
            Literal["running", "popart", "real"], Field(description="how values are normalised, or real ones")
        ] = "running",
        value_masks: Annotated[bool, Field(description="leave dead agents out of the value loss")] = False,
        death_masking: Annotated[bool, Field(description="the critic sees nothing of the dead but a number")] = True,
        critic_input: Annotated[
            Literal["obs", "state", "agent-specific"] | None, Field(description="what the critic sees; IPPO obs")
        ] = None,
        time_limit: Annotated[
            Literal["bootstrap", "terminal"], Field(description="a truncated episode has a value behind it, or none")
        ] = "bootstrap",
        correction: Annotated[
            Literal["none", "v-trace"], Field(description="of steps of earlier parameters, as with --overlap")
        ] = "none",
        rho_max: Annotated[float, Field(gt=0, description="v-trace: largest weight of a step")] = 1.0,
        c_max: Annotated[float, Field(gt=0, description="v-trace: largest weight of what follows a step")] = 1.0,
        target_kl: Annotated[float | None, Field(gt=0, description="divergence that ends an update; or none")] = None,
        hidden_size: Annotated[int, Field(ge=1, description="units of each layer")] = 64,
        recurrent: Annotated[bool, Field(description="a GRU behind the layers")] = True,
        chunk_length: Annotated[int, Field(ge=1, description="recurrent: steps that are unrolled")] = 10,
        gain: Annotated[float, Field(gt=0, description="of the actor's head at the start; 1 on MMM2")] = 0.01,
    ) -> None:
        networks = Networks.of(
            {
                "hidden_size": hidden_size,
                "recurrent": recurrent,
                "critic_input": critic_input or self.critic_sees,
                "death_masking": death_masking,
            },
            **TEAM,
        )
        learning = Learning(
            learning_rate=learning_rate,
            critic_learning_rate=critic_learning_rate,
            anneal=anneal,
            epochs=epochs,
            minibatches=minibatches,
            clip=clip,
            value_clip=value_clip,
            entropy=entropy,
            value_coefficient=1.0,
            gamma=gamma,
            gae_lambda=gae_lambda,
            grad_norm_clip=grad_norm_clip,
            huber=huber,
            advantages="update",
            value_units=value_units,
            value_masks=value_masks,
            time_limit=time_limit,
            correction=correction,
            rho_max=rho_max,
            c_max=c_max,
            target_kl=target_kl,
            chunk_length=chunk_length,
            gain=gain,
        )
        self._learn_as(spec, networks, learning, seed=seed, device=device)


class Ippo(Mappo):
    """MAPPO whose critic sees what the agent sees."""

    critic_sees: ClassVar[CriticInput] = "obs"
