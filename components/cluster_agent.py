"""The agents of ClusterEnv: objects of any kind with two methods, wrapped as policies so that workers can load them."""

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from components.policies.acting import ActingPolicy
from orchestra import UsageError, import_file


class Agent(Protocol):
    """The interface that ClusterEnv needs. A torch module needs only `act`: its `state_dict` has the parameters."""

    def act(self, obs: NDArray[Any]) -> Any:
        """Return actions for observations (B, …), or a pair: actions, and further outputs (B, …) by name.

        Actions and outputs are arrays or tensors. Outputs are sent to the learner: log-probabilities, values.
        """

    def get_parameters(self) -> Mapping[str, Any]:
        """Return the parameters of acting by name, as arrays or tensors."""

    def set_parameters(self, parameters: Mapping[str, NDArray[Any]]) -> None:
        """Load parameters from `get_parameters` of an equal agent."""


class AgentError(RuntimeError):
    """An agent or an environment has failed on a node, or does not fit the interface that ClusterEnv needs."""


class AgentPolicy(ActingPolicy):
    """An agent as a policy whose parameters are one flat array of float32.

    Args:
        agent: has `act`. For thresholds of divergence it also has `distribution(obs)`, which returns `logits` (B, U),
            or `mean` and `log_std` (B, D).
    """

    probe_fields: Sequence[str] | None = ("obs",)

    def __init__(self, agent: Any) -> None:
        self.agent = agent
        self.named()  # raises now if the agent has no parameters

    def initial_hidden(self, n_envs: int) -> NDArray[np.float32]:
        return np.zeros((n_envs, 1, 1), np.float32)

    def outputs(
        self, frames: Mapping[str, NDArray[Any]], last_actions: NDArray[Any], hidden: NDArray[np.float32]
    ) -> tuple[Mapping[str, NDArray[Any]], NDArray[np.float32]]:
        if not hasattr(self.agent, "distribution"):
            raise AgentError(
                f"{type(self.agent).__name__} has no method `distribution(obs)`, which `kl_threshold` needs: it "
                "returns logits, or mean and log_std"
            )
        said = self.agent.distribution(frames["obs"].copy())  # torch warns about read-only memory
        return {name: as_array(value)[:, None] for name, value in said.items()}, hidden

    def act_in(self, obs: NDArray[Any]) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
        """Return the agent's actions (B, …) and further outputs by name.

        Raises:
            AgentError: an output does not have one row for each environment.
        """
        acted = self.agent.act(obs)
        actions, said = acted if isinstance(acted, tuple) else (acted, {})
        outputs = {name: as_array(value) for name, value in said.items()}
        for name, array in {"actions": as_array(actions), **outputs}.items():
            if array.shape[:1] != (len(obs),):
                raise AgentError(f"act(obs): {name} must have {len(obs)} rows, got shape {array.shape}")
        return as_array(actions), outputs

    def named(self) -> dict[str, NDArray[Any]]:
        """Return the agent's parameters by name, as arrays.

        Raises:
            AgentError: it has none.
        """
        if hasattr(self.agent, "get_parameters"):
            found = self.agent.get_parameters()
        elif hasattr(self.agent, "state_dict"):
            found = self.agent.state_dict()
        else:
            raise AgentError(f"{type(self.agent).__name__} has neither `get_parameters` nor `state_dict`")
        if not isinstance(found, Mapping):
            found = {str(index): each for index, each in enumerate(found)}
        return {name: as_array(value) for name, value in found.items()}

    def params(self) -> NDArray[np.float32]:
        flat = np.concatenate([array.reshape(-1).astype(np.float32) for array in self.named().values()])
        flat.flags.writeable = False
        return flat

    def load(self, params: NDArray[np.float32]) -> None:
        named = self.named()
        ends = np.cumsum([array.size for array in named.values()])
        if params.shape != (int(ends[-1]),):
            raise ValueError(f"params: expected {ends[-1]} numbers for {type(self.agent).__name__}, got {params.shape}")
        parts = np.split(params, ends[:-1])
        new = {
            name: part.reshape(old.shape).astype(old.dtype)
            for (name, old), part in zip(named.items(), parts, strict=True)
        }
        if hasattr(self.agent, "set_parameters"):
            self.agent.set_parameters(new)
        elif hasattr(self.agent, "load_state_dict"):
            import torch  # the agent is a module of it

            self.agent.load_state_dict({name: torch.from_numpy(array) for name, array in new.items()})
        else:
            raise AgentError(f"{type(self.agent).__name__} has neither `set_parameters` nor `load_state_dict`")


def as_array(value: Any) -> NDArray[Any]:
    """Return an array, a tensor or a number as an array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return np.asarray(value)


def make_agent(file: str, name: str, envs: Any) -> AgentPolicy:
    """Make an agent by a class or a function of a file, which is imported.

    Args:
        file: the path. Code for running the file as a program belongs under `if __name__ == "__main__"`.
        name: name of a class, or of a function.
        envs: the node's vector environment, passed if the class or function has a parameter without default. It has
            `single_observation_space` and `single_action_space`.

    Raises:
        UsageError: there is no such file, or no such name in it.
    """
    found = getattr(import_file(Path(file), "agent"), name, None)
    if not callable(found):
        raise UsageError(f"{file}: there is no class or function {name!r} that makes an agent")
    parameters = inspect.signature(found).parameters.values()
    takes = any(each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD for each in parameters)
    return AgentPolicy(found(envs) if takes else found())
