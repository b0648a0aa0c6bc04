"""What all policies with recurrent agents share: acting step by step, parameters in flat memory, packed batches."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from components.envs.base import EnvSpec
from components.policies import kernel
from components.policies.base import EpisodeBatch, Policy
from components.policies.devices import opened
from components.policies.initial import initialise
from components.policies.inputs import AgentInputs
from components.policies.networks import RecurrentAgent, flatten_parameters
from components.policies.optimizer import FlatOptimizer, same
from components.policies.options import Options, RecurrentOptions
from components.policies.packing import Packing


class RecurrentPolicy(Policy):
    """Agents that share one recurrent network and act by its output for each action.

    Args:
        spec: sizes of the environment.
        **options: as `Options`.

    Raises:
        ValueError: an option is out of its range.
    """

    def __init__(self, spec: EnvSpec, **options: Unpack[RecurrentOptions]) -> None:
        self.spec, self.options = spec, Options(**options)
        self.updates = 0
        """Batches learnt from so far."""
        self._device, self._dtype = opened(self.options.device), self.options.dtype
        with torch.device("meta"):
            self.agent = RecurrentAgent(spec, self.options.hidden_size)
            self._online, self._target = self._make_networks()
        self._flat = flatten_parameters(list(self._online.values()), self._device, self._dtype)
        self._target_flat = flatten_parameters(list(self._target.values()), self._device, self._dtype)
        generator = torch.Generator().manual_seed(self.options.seed)
        initialise(list(self._online.values()), self.options.init, generator)
        self._n_acting = sum(p.numel() for p in self.agent.parameters())
        self._gathered: dict[str, Tensor] = {}
        self.update_targets()

    @abstractmethod
    def _make_networks(self) -> tuple[dict[str, nn.Module], dict[str, nn.Module]]:
        """Return the networks that learn, `self.agent` first, and the target networks, both by name.

        The target networks are copies of the last networks that learn, in the same order.
        """

    def prepare(self) -> None:
        kernel.prepare(np.dtype(np.float64 if self._dtype == torch.float64 else np.float32))
        for optimizer in self._optimizers().values():
            optimizer.prepare()

    @abstractmethod
    def _optimizers(self) -> Mapping[str, FlatOptimizer]:
        """Return the optimisers by name."""

    def update_targets(self) -> None:
        """Copy the online networks to the target networks."""
        with torch.no_grad():
            self._target_flat.copy_(self._flat[len(self._flat) - len(self._target_flat) :])

    # Acting ---------------------------------------------------------------------------------------------------------

    def initial_hidden(self, n_envs: int) -> NDArray[np.float32]:
        return np.zeros((n_envs, self.spec.n_agents, self.options.hidden_size), np.float32)

    def _forward(
        self,
        obs: NDArray[np.float32],  # (B, A, O)
        last_actions: NDArray[np.int64],  # (B, A)
        hidden: NDArray[np.float32],  # (B, A, H)
    ) -> tuple[NDArray[np.floating[Any]], NDArray[np.float32]]:
        """Return the network's output for each action (B, A, U), and the next hidden state (B, A, H)."""
        rows = len(obs) * self.spec.n_agents
        with torch.inference_mode():
            said, hidden_rows = self.agent(
                self._tensor(obs.reshape(rows, -1), self._dtype),
                self._tensor(last_actions.reshape(rows), torch.int64),
                self._tensor(hidden.reshape(rows, -1), self._dtype),
            )
        after = hidden_rows.numpy(force=True).reshape(hidden.shape).astype(np.float32, copy=False)
        return said.numpy(force=True).reshape(len(obs), self.spec.n_agents, -1), after

    def _tensor(self, array: NDArray[Any], dtype: torch.dtype) -> Tensor:
        # torch warns about read-only memory, so it is copied.
        return torch.from_numpy(array if array.flags.writeable else array.copy()).to(self._device, dtype)

    def params(self) -> NDArray[np.float32]:
        copy = self._flat[: self._n_acting].to("cpu", torch.float32, copy=True).numpy()
        copy.flags.writeable = False
        return copy

    def load(self, params: NDArray[np.float32]) -> None:
        if params.shape != (self._n_acting,):
            raise ValueError(f"params: expected shape ({self._n_acting},) for {self!r}, got {params.shape}")
        self._flat[: self._n_acting] = self._tensor(params, self._dtype)

    # Batches --------------------------------------------------------------------------------------------------------

    def _gather(self, name: str, padded: NDArray[Any], rows: NDArray[np.int64], dtype: torch.dtype) -> Tensor:
        """Return the given rows of `padded`, whose first two axes are episode and time, in kept memory."""
        item = padded.shape[2:]
        gathered = self._memory(name, len(rows), item, padded.dtype)
        # The rows are in range. Without `mode` numpy would gather into a temporary buffer first.
        np.take(padded.reshape(-1, *item), rows, axis=0, out=gathered.numpy(), mode="clip")
        # The memory is written again in the next gradient step, and this one waits for its results at its end.
        return gathered.to(self._device, non_blocking=True).to(dtype)

    def _inputs(self, batch: EpisodeBatch, packing: Packing, last_actions: NDArray[np.int64]) -> AgentInputs:
        """Return the inputs of the agents' network for every frame; `last_actions` is (F, A)."""
        spec = self.spec
        rows = len(packing.frames) * spec.n_agents
        return AgentInputs.of(
            batch.obs,
            packing.frames,
            last_actions,
            packing.frame_blocks,
            packing.asked_blocks,
            n_actions=spec.n_actions,
            memory=self._memory("living", rows, (spec.obs_size,), batch.obs.dtype),
        ).to(self._device, self._dtype)

    def _memory(self, name: str, rows: int, item: tuple[int, ...], dtype: np.dtype[Any]) -> Tensor:
        """Return an uninitialised (rows, *item) tensor, kept by that name, from which the device may fetch."""
        kept = self._gathered.get(name)
        if kept is None or len(kept) < rows:
            like = torch.from_numpy(np.empty(0, dtype))
            # A GPU copies from pinned memory asynchronously, while the next array is gathered.
            pinned = self._device.type == "cuda"
            kept = self._gathered[name] = torch.empty((rows, *item), dtype=like.dtype, pin_memory=pinned)
        return kept[:rows]

    def _priorities(self, error: NDArray[Any], batch: EpisodeBatch, packing: Packing) -> NDArray[np.float32]:
        """Return an episode's η max|δ| + (1 - η) mean|δ| of the `error` (N,) of its steps."""
        padded = np.zeros(batch.reward.shape, np.float64)
        padded.reshape(-1)[packing.steps] = error
        mean = padded.sum(1) / batch.lengths
        priorities = self.options.priority_eta * padded.max(1) + (1.0 - self.options.priority_eta) * mean
        return np.asarray(priorities, np.float32)

    def _check(self, batch: EpisodeBatch) -> None:
        spec = self.spec
        n_episodes, n_steps = batch.reward.shape
        for name, expected in (
            ("obs", (n_episodes, n_steps + 1, spec.n_agents, spec.obs_size)),
            ("state", (n_episodes, n_steps + 1, spec.state_size)),
            ("available", (n_episodes, n_steps + 1, spec.n_agents, spec.n_actions)),
            ("actions", (n_episodes, n_steps, spec.n_agents)),
            ("lengths", (n_episodes,)),
            ("terminated", (n_episodes,)),
            ("weights", (n_episodes,)),
            ("epsilon", (n_episodes,)),
        ):
            array = getattr(batch, name)
            if array is not None and array.shape != expected:
                raise ValueError(f"batch.{name}: expected shape {expected}, got {array.shape}")

    # Checkpoints ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {
            "online": {name: p.detach().to("cpu", copy=True) for name, p in _named(self._online)},
            "target": {name: p.detach().to("cpu", copy=True) for name, p in _named(self._target)},
            "optimizers": {name: optimizer.state() for name, optimizer in self._optimizers().items()},
            "updates": self.updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        optimizers = self._optimizers()
        same("state", {"online", "target", "optimizers", "updates"}, set(state))
        same("optimizers", set(optimizers), set(state["optimizers"]))
        for part, networks in (("online", self._online), ("target", self._target)):
            own = {name: tuple(p.shape) for name, p in _named(networks)}
            same(part, own, {k: tuple(v.shape) for k, v in state[part].items()})
        for name, optimizer in optimizers.items():
            optimizer.check(f"optimizer {name!r}", state["optimizers"][name])

        with torch.no_grad():
            for part, networks in (("online", self._online), ("target", self._target)):
                for name, p in _named(networks):
                    p.copy_(state[part][name])
        for name, optimizer in optimizers.items():
            optimizer.load(state["optimizers"][name])
        self.updates = int(state["updates"])

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.spec.name} after {self.updates} updates>"


def _named(networks: Mapping[str, nn.Module]) -> list[tuple[str, nn.Parameter]]:
    return [pair for name, network in networks.items() for pair in network.named_parameters(name)]
