"""The base of policies with recurrent agents: acting step by step, parameters in flat memory, packed batches."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from components.envs.base import EnvSpec
from components.experience import SchemaMismatch
from components.policies import kernel
from components.policies.acting import RECURRENT_PROBE_FRAMES
from components.policies.base import EpisodeBatch, TrainStepResult
from components.policies.inputs import AgentInputs
from components.policies.modules import ModulePolicy
from components.policies.networks import RecurrentAgent
from components.policies.options import Options, RecurrentOptions
from components.policies.packing import Packing
from components.policies.parallel import MOST_PARTS
from components.policies.returns import lambda_returns
from components.policies.scratch import Scratch

ROWS_OF_A_PART = 48
"""Least rows of a part's first step: agents of its episodes. Fewer would not fill the tiles of a product."""


@dataclass(frozen=True, slots=True)
class PackedSteps:
    """A batch without its padding, as tensors: N steps and F = N + E frames of E episodes, in packed order."""

    packing: Packing
    inputs: AgentInputs  # F * A rows
    actions: Tensor  # (N, A)
    state: Tensor  # (F, S)
    available: Tensor  # (F, A, U)
    departs: Tensor  # (N,): the frame that a step leaves
    weights: Tensor  # (N, 1): importance weights of prioritised sampling

    @property
    def n_episodes(self) -> int:
        """E. Step k arrives at frame k + E, so `values[n_episodes:]` are the values of the frames after steps."""
        return len(self.packing.last)

    @property
    def state_t(self) -> Tensor:
        """The states that the steps leave, (N, S)."""
        return self.state[self.departs]

    @property
    def state_tp1(self) -> Tensor:
        """The states that the steps arrive at, (N, S)."""
        return self.state[self.n_episodes :]

    def best(self, q: Tensor) -> Tensor:
        """Return each agent's available action of highest value in every frame, (F, A, 1), for values (F, A, U)."""
        return torch.where(self.available, q, -torch.inf).max(2, keepdim=True)[1]

    def taken(self, q: Tensor) -> Tensor:
        """Return the values of the chosen actions (N, A), from the values of all frames (F, A, U), without a copy."""
        _, n_agents, n_actions = q.shape
        agents = torch.arange(n_agents, device=q.device)
        chosen = (self.departs.unsqueeze(1) * n_agents + agents) * n_actions + self.actions
        return q.view(-1).gather(0, chosen.view(-1)).view(-1, n_agents)


class RecurrentPolicy(ModulePolicy):
    """Agents that share one recurrent network, and act by its outputs, one for each action.

    Args:
        spec: sizes of the environment.
        **options: as `Options`.

    Raises:
        ValueError: an option is out of its range.
    """

    probe_frames = RECURRENT_PROBE_FRAMES
    probe_fields: Sequence[str] | None = ("obs", "available")

    def __init__(self, spec: EnvSpec, **options: Unpack[RecurrentOptions]) -> None:
        self.spec, self.options = spec, Options(**options)
        with torch.random.fork_rng(devices=[]):
            self.agent = RecurrentAgent(self.network_spec, self.options.hidden_size)
        super().__init__(
            spec,
            seed=self.options.seed,
            device=self.options.device,
            dtype=self.options.dtype,
            init=self.options.init,
        )
        # A GPU copies from pinned memory asynchronously, while the next array is gathered.
        self._gathered = Scratch(pinned=self._device.type == "cuda")

    @staticmethod
    @abstractmethod
    def choose(
        said: NDArray[np.floating[Any]], available: NDArray[np.bool_], epsilon: float, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Choose actions; see `acting.Choice`."""

    @property
    def network_spec(self) -> EnvSpec:
        """Sizes of the agents' network: those of the environment, unless the outputs are not its actions."""
        return self.spec

    def _done(self, batch: EpisodeBatch) -> NDArray[np.int64]:
        """Return the network's input for the last action after each step, (N, A): numbers of its outputs."""
        return batch.steps("actions")

    def prepare(self) -> None:
        if self.options.compiled:
            kernel.prepare(np.dtype(np.float64 if self._dtype == torch.float64 else np.float32))
        super().prepare()

    # Acting ---------------------------------------------------------------------------------------------------------

    def initial_hidden(self, n_envs: int) -> NDArray[np.float32]:
        return np.zeros((n_envs, self.spec.n_agents, self.options.hidden_size), np.float32)

    def act(
        self,
        obs: NDArray[np.float32],  # (B, A, O)
        available: NDArray[np.bool_],  # (B, A, U)
        last_actions: NDArray[np.int64],  # (B, A)
        hidden: NDArray[np.float32],  # (B, A, H)
        *,
        epsilon: float,
        rng: np.random.Generator,
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        said, after = self._step(obs, last_actions, hidden)
        return self.choose(np.where(available, said, -np.inf), available, epsilon, rng), after

    def outputs(
        self, frames: Mapping[str, NDArray[Any]], last_actions: NDArray[Any], hidden: NDArray[np.float32]
    ) -> tuple[Mapping[str, NDArray[Any]], NDArray[np.float32]]:
        said, after = self._step(frames["obs"], last_actions, hidden)
        return {"logits": said}, after

    def _step(
        self, obs: NDArray[np.float32], last_actions: NDArray[np.int64], hidden: NDArray[np.float32]
    ) -> tuple[NDArray[np.floating[Any]], NDArray[np.float32]]:
        """Return the network's output (B, A, U), and the next hidden state (B, A, H)."""
        rows = last_actions.size
        with torch.inference_mode():
            said, hidden_rows = self.agent(
                self._tensor(obs.reshape(rows, -1), self._dtype),
                self._tensor(last_actions.reshape(rows), torch.int64),
                self._tensor(hidden.reshape(rows, -1), self._dtype),
            )
        after = hidden_rows.numpy(force=True).reshape(hidden.shape).astype(np.float32, copy=False)
        return said.numpy(force=True).reshape(*last_actions.shape, -1), after

    def _tensor(self, array: NDArray[Any], dtype: torch.dtype) -> Tensor:
        # torch warns about read-only memory, so it is copied.
        return torch.from_numpy(array if array.flags.writeable else array.copy()).to(self._device, dtype)

    # Batches --------------------------------------------------------------------------------------------------------

    def prepared(self, batch: EpisodeBatch) -> PackedSteps:
        """Return `batch` as packed tensors on the device.

        Raises:
            ValueError: an array of the batch does not have the shape that the others and the spec demand.
        """
        self._check(batch)
        spec, packing = self.network_spec, Packing.of(batch.lengths, batch.terminated)
        n_episodes = len(batch.lengths)
        # Step k arrives at frame k + E; its action is the last action there.
        last_actions = np.full((len(packing.frames), spec.n_agents), -1)
        last_actions[n_episodes:] = self._done(batch)[packing.steps]
        actions = batch.steps("actions")[packing.steps]
        inputs = AgentInputs.of(
            batch.frames("obs"),
            packing,
            last_actions,
            n_actions=spec.n_actions,
            n_parts=self._n_parts(n_episodes),
            memory=self._gathered.take("living", (last_actions.size, spec.obs_size), torch.float32),
            compiled=self.options.compiled,
        )
        return PackedSteps(
            packing=packing,
            inputs=inputs.to(self._device, self._dtype),
            actions=torch.from_numpy(actions).to(self._device),
            state=self._gather("state", batch, packing, torch.float32).to(self._dtype),
            available=self._gather("available", batch, packing, torch.bool),
            departs=torch.from_numpy(packing.departs).to(self._device),
            weights=torch.from_numpy(batch.weights[packing.episode]).to(self._device, self._dtype).unsqueeze(1),
        )

    def _n_parts(self, n_episodes: int) -> int:
        """Return the number of parts of a batch. It depends only on its size, so that sums are always rounded alike."""
        if self._device.type == "cuda":
            return 1
        return max(1, min(MOST_PARTS, n_episodes, n_episodes * self.spec.n_agents // ROWS_OF_A_PART))

    def _gather(self, name: str, batch: EpisodeBatch, packing: Packing, dtype: torch.dtype) -> Tensor:
        """Return the packed frames of a field of `dtype` on the device."""
        rows = batch.frames(name)
        gathered = self._gathered.take(name, rows.shape, dtype)
        # The rows are in range. Without `mode` NumPy would gather into a temporary buffer first.
        np.take(rows, packing.frames, axis=0, out=gathered.numpy(), mode="clip")
        # Safe to copy asynchronously: this step waits for its results before the next one overwrites the memory.
        return gathered.to(self._device, non_blocking=True)

    def targets(self, value_tp1: Tensor, batch: EpisodeBatch, steps: PackedSteps) -> Tensor:
        """Return the targets (N, M), from `value_tp1` (N, M): the value of the frame after each step."""
        packing, ahead = steps.packing, value_tp1.numpy(force=True).copy()
        ahead[packing.last[batch.terminated]] = 0.0  # a truncated episode keeps the value of its last frame
        reward = batch.steps("reward")[packing.steps].astype(ahead.dtype)[:, None]
        returns = lambda_returns(
            reward, ahead, packing.step_blocks, gamma=self.options.gamma, td_lambda=self.options.td_lambda
        )
        return torch.from_numpy(returns).to(self._device)

    def _result(
        self, metrics: Mapping[str, float], q_taken: Tensor, target: Tensor, batch: EpisodeBatch, packing: Packing
    ) -> TrainStepResult:
        """Return `metrics` with the metrics of the error of `q_taken` (N, M), and each episode's priority."""
        error = (target - q_taken).abs()
        told = {"q_taken": q_taken, "target": target, "td_error": error}
        errors = np.empty(len(packing.steps))
        errors[packing.steps] = error.mean(1).numpy(force=True)
        means = {name: float(x.mean()) for name, x in told.items()}
        return TrainStepResult({**metrics, **means}, self._priorities(errors, batch))

    def _priorities(self, errors: NDArray[np.float64], batch: EpisodeBatch) -> NDArray[np.float32]:
        """Return each episode's priority η max|δ| + (1 - η) mean|δ| (E,), from its steps' mean errors |δ| (N,)."""
        eta, begins = self.options.priority_eta, np.cumsum(batch.lengths) - batch.lengths
        mean = np.add.reduceat(errors, begins) / batch.lengths
        return np.asarray(eta * np.maximum.reduceat(errors, begins) + (1.0 - eta) * mean, np.float32)

    def _check(self, batch: EpisodeBatch) -> None:
        try:
            n_episodes = batch.check_shapes(self.spec.schema)
        except SchemaMismatch as error:
            raise ValueError(f"batch.{error}") from error
        for name in ("lengths", "terminated", "truncated", "weights", "epsilon"):
            array = getattr(batch, name)
            if array is not None and array.shape != (n_episodes,):
                raise ValueError(f"batch.{name}: expected shape {(n_episodes,)}, got {array.shape}")
