"""Settings of PPO, IPPO and MAPPO networks, which learner and workers share; this file does not import torch."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from components.envs.base import EnvSpec
from components.experience import LOG_PROB, VALUE, FieldSpec
from components.policies.advantages import TimeLimit

CriticInput = Literal["obs", "state", "agent-specific"]
"""Input of the critic: the agent's observation (IPPO), the state, or both ("AS" in Yu et al. 2022)."""
ValueUnits = Literal["running", "popart", "real"]
"""Normalisation of values: by running statistics; by these with an adapted critic's head, so that values in real units
do not change (van Hasselt et al. 2016); or none."""
Correction = Literal["none", "v-trace"]
"""Correction for steps of earlier parameters, besides the clipped ratio: none, or V-trace (Espeholt et al. 2018)."""
Frames = Mapping[str, NDArray[Any]]
Shapes = list[tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Networks:
    """Sizes and kinds of the actor and the critic, which have the same structure."""

    hidden_size: int = 64
    """Units of each layer."""
    layers: int = 2
    """Layers before the GRU, or before the head."""
    activation: Literal["tanh", "relu"] = "tanh"
    layer_norm: bool = False
    """LayerNorm of the input, and after each activation and the GRU."""
    recurrent: bool = False
    """A GRU after the layers."""
    critic_input: CriticInput = "obs"
    death_masking: bool = True
    """The critic sees only the number of a dead agent; so does the actor if the environment has the field `alive`."""
    last_action: bool = False
    """Agents see their last actions, if actions are discrete."""
    squash: bool = False
    """Continuous actions are tanh of the drawn values, scaled to the bounds; otherwise the environment clips them."""
    normalise_obs: bool = False
    """Observations are normalised by running statistics, which are part of the parameters."""

    @classmethod
    def of(cls, options: Mapping[str, Any], **others: Any) -> "Networks":
        """Return the networks of an algorithm with these `options`; `others` replace defaults."""
        names = {each.name for each in fields(cls)}
        said = {name: value for name, value in options.items() if name in names and value is not None}
        return replace(cls(**others), **said)


TEAM: Mapping[str, Any] = {"activation": "relu", "layer_norm": True, "recurrent": True, "last_action": True}
"""The networks of Yu et al. (2022)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """Settings of PPO's learning; the classes in `ppo` have the defaults."""

    learning_rate: float
    critic_learning_rate: float | None
    """None means one optimiser for actor and critic, and one norm of all gradients."""
    anneal: int
    epochs: int
    minibatches: int
    clip: float
    value_clip: bool
    entropy: float
    value_coefficient: float
    gamma: float
    gae_lambda: float
    grad_norm_clip: float
    huber: float | None
    advantages: Literal["update", "minibatch"]
    value_units: ValueUnits
    value_masks: bool
    time_limit: TimeLimit
    correction: Correction
    rho_max: float
    c_max: float
    target_kl: float | None
    chunk_length: int
    gain: float


class Interface:
    """The networks' interface to an environment: inputs of actor and critic, actions, and fields of a transition.

    Letters in shapes: n rows of frames, A agents, I inputs.

    Raises:
        ValueError: the environment does not have what the networks need.
    """

    def __init__(self, spec: EnvSpec, networks: Networks) -> None:
        schema = spec.schema.by_name
        action, obs = schema["actions"], schema.get("obs")
        if obs is None or len(obs.shape) != 1 or not obs.agents:
            raise ValueError(f"{spec.name}: PPO needs one flat observation of each agent, `obs`")
        if not action.agents:
            raise ValueError(f"{spec.name}: PPO needs an action of each agent")
        self.spec, self.networks, self.n_agents = spec, networks, spec.n_agents
        self.obs_size = obs.shape[0]
        self.continuous = not action.n_values
        self.n_choices = action.shape[0] if action.shape else 1
        self.n_values = action.n_values if len(action.n_values) == self.n_choices else action.n_values * self.n_choices
        self.masked = "available" in schema and not self.continuous
        self.has_alive = "alive" in schema
        self.mortal_reward = self.has_alive and schema["reward"].agents
        """True if rewards end with an agent's death, so that its value is 0 then; a team's reward continues."""
        self.knows_last = networks.last_action and not self.continuous and not action.shape
        if networks.squash and (not self.continuous or not np.isfinite([*action.low, *action.high]).all()):
            raise ValueError(f"{spec.name}: --squash needs continuous actions with finite bounds")
        low, high = np.array(action.low, np.float32), np.array(action.high, np.float32)
        self.scale, self.centre = (high - low) / 2, (high + low) / 2
        if networks.critic_input != "obs" and "state" not in schema:
            raise ValueError(f"{spec.name}: --critic-input {networks.critic_input} needs a state; use obs")
        own = (sum(self.n_values) if self.knows_last else 0) + (self.n_agents if self.n_agents > 1 else 0)
        seen = {"obs": self.obs_size, "state": spec.state_size, "agent-specific": spec.state_size + self.obs_size}
        self.actor_size, self.critic_size = self.obs_size + own, seen[networks.critic_input] + own
        self.n_outputs = action.shape[0] if self.continuous else sum(self.n_values)
        self.fields: dict[str, FieldSpec] = {
            "log_prob": FieldSpec((), agents=True, finite=True) if self.continuous else LOG_PROB,
            "value": VALUE,
        }
        if networks.recurrent:
            self.fields["hidden"] = FieldSpec((2 * networks.hidden_size,), per="segment", agents=True, finite=True)
        if self.knows_last:
            self.fields["before"] = FieldSpec((), "int64", per="segment", agents=True)
        if networks.squash:
            self.fields["unsquashed"] = FieldSpec(action.shape, agents=True, finite=True)

    def branch_shapes(self, n_inputs: int, n_outputs: int, *, log_sd: bool) -> Shapes:
        """Return the shapes of the parameters of the actor, or of the critic, in their order."""
        net, size = self.networks, self.networks.hidden_size
        norm: Shapes = [(size,), (size,)] if net.layer_norm else []
        shapes: Shapes = [(n_outputs,)] if log_sd else []
        shapes += [(n_inputs,), (n_inputs,)] if net.layer_norm else []
        for before, after in pairwise([n_inputs, *[size] * net.layers]):
            shapes += [(after, before), (after,), *norm]
        if net.recurrent:
            shapes += [(3 * size, size), (3 * size, size), (3 * size,), (3 * size,), *norm]
        return [*shapes, (n_outputs, size), (n_outputs,)]

    def alive(self, frames: Frames) -> NDArray[np.bool_]:
        """Return which agents (n, A) live: by the field `alive`, or those that see something or have a choice."""
        if self.has_alive:
            return np.asarray(frames["alive"], np.bool_)
        if not self.masked:
            return np.ones(frames["obs"].shape[:2], np.bool_)
        available = frames["available"].reshape(*frames["obs"].shape[:2], -1)
        return np.asarray((available.sum(-1) > 1) | frames["obs"].any(-1))

    def inputs(
        self, frames: Frames, last_actions: NDArray[Any], obs_mean: NDArray[Any], obs_var: NDArray[Any]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the inputs (n, A, I) of the actor and of the critic.

        Args:
            frames: fields (n, …).
            last_actions: (n, A), -1 where an episode begins.
            obs_mean: (O,), used where observations are normalised.
            obs_var: (O,).
        """
        net, obs = self.networks, np.asarray(frames["obs"], np.float32)
        n = len(obs)
        if net.normalise_obs:
            obs = np.clip((obs - obs_mean) / np.sqrt(obs_var + 1e-8), -10.0, 10.0).astype(np.float32)
        own = []
        if self.knows_last:
            own.append((last_actions[..., None] == np.arange(sum(self.n_values))).astype(np.float32))
        if self.n_agents > 1:
            own.append(np.broadcast_to(np.eye(self.n_agents, dtype=np.float32), (n, self.n_agents, self.n_agents)))
        actor = np.concatenate([obs, *own], -1)
        if net.critic_input == "obs":
            seen = [obs]
        else:
            state = np.broadcast_to(frames["state"][:, None], (n, self.n_agents, self.spec.state_size))
            seen = [state, obs] if net.critic_input == "agent-specific" else [state]
        critic = np.concatenate([*seen, *own], -1).astype(np.float32, copy=False)
        if net.death_masking and self.n_agents > 1:
            dead = ~self.alive(frames)
            critic[dead, : critic.shape[-1] - self.n_agents] = 0.0
            if self.has_alive:
                actor[dead, : actor.shape[-1] - self.n_agents] = 0.0
        return actor, critic
