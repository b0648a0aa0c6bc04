"""Learning on two levels, from the same episodes: QMIX over actions within sub-tasks, and QMIX over sub-tasks.

Letters in shapes: E episodes, T steps, N steps of all of them, F frames, M choices of sub-tasks, A agents, S sub-tasks,
U actions, V outputs of the network, c steps between choices.
"""

from collections.abc import Sequence
from typing import Literal, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from components.envs.base import EnvSpec
from components.policies.acting import epsilon_greedy
from components.policies.base import EpisodeBatch, TrainStepResult
from components.policies.hierarchical_acting import HierarchicalActing, Levels, Upper
from components.policies.modules import TwoSidedPolicy
from components.policies.networks import RecurrentAgent
from components.policies.optimizer import FlatOptimizer
from components.policies.options import RecurrentOptions
from components.policies.parallel import own_threads
from components.policies.qmix import MonotonicMixer
from components.policies.recurrent import PackedSteps, RecurrentPolicy
from components.policies.vdn import Summed

Mixing = Literal["qmix", "vdn"]


def by_part(values: Tensor, grid: Sequence[int]) -> Tensor:
    """Return the values (…, U) of actions: the value of an action is the sum of one value of each of its parts.

    Args:
        values: (…, ΣG), values of the indices of each part, one part after the other.
        grid: G, sizes of the parts. An action is their row-major index.
    """
    total, *others = torch.split(values, list(grid), dim=-1)
    for part in others:
        total = (total.unsqueeze(-1) + part.unsqueeze(-2)).flatten(-2)
    return total


def _sums(said: Tensor, frames: Tensor, outputs: Tensor) -> Tensor:
    """Return the sums (N, A) of the network's outputs number `outputs` (N, A, m) in `frames` (N,).

    It is one flat `gather` of few numbers out of `said` (F, A, V), whose backward pass copies no rows.
    """
    _, n_agents, size = said.shape
    rows = frames.to(said.device)[:, None] * n_agents + torch.arange(n_agents, device=said.device)
    places = rows.unsqueeze(2) * size + outputs.to(said.device)
    return said.reshape(-1).gather(0, places.view(-1)).view(places.shape).sum(2)


class Choices:
    """The M choices of sub-tasks in a batch, episode by episode, in the order of time.

    Args:
        lengths: (E,), steps of each episode.
        longest: T.
        subtask_steps: c.
    """

    def __init__(self, lengths: NDArray[np.int32], longest: int, subtask_steps: int) -> None:
        counts = -(-lengths.astype(np.int64) // subtask_steps)
        self.episode = np.repeat(np.arange(len(lengths)), counts)  # (M,)
        self.number = np.arange(len(self.episode)) - np.repeat(np.cumsum(counts) - counts, counts)  # (M,): in each
        self.begins = self.number * subtask_steps  # (M,): the frame of the choice
        self.ends = np.minimum(self.begins + subtask_steps, lengths[self.episode])  # (M,): next choice, or last frame
        self.is_last = self.ends == lengths[self.episode]  # (M,)

    def returns(
        self, reward: NDArray[np.floating], value_at_end: NDArray[np.floating], *, gamma: float, td_lambda: float
    ) -> NDArray[np.float64]:
        """Return G = Σ gamma^i r_{t+i} + gamma^n [(1 - λ) v + λ G'] (M,) of each choice; G' = v for an episode's last.

        The sum is over the n steps until the next choice, whose return is G'. This is the target of an option in a
        semi-Markov decision process (Sutton, Precup and Singh 1999, §3), with Peng's λ.

        Args:
            reward: (E, T).
            value_at_end: (M,), v of the frame where the sub-task ends: 0 if the episode ended there.
            gamma: discount of a step.
            td_lambda: λ.
        """
        steps = self.ends - self.begins
        returns = np.zeros(len(steps))
        for i in range(steps.max()):
            within = np.flatnonzero(i < steps)
            returns[within] += gamma**i * reward[self.episode[within], self.begins[within] + i]
        discount = gamma ** steps.astype(np.float64)
        returns += discount * value_at_end
        if td_lambda > 0.0:
            for number in range(self.number.max() - 1, -1, -1):
                here = np.flatnonzero((self.number == number) & ~self.is_last)
                returns[here] += discount[here] * td_lambda * (returns[here + 1] - value_at_end[here])
        return returns


class HierarchicalLearner(TwoSidedPolicy, RecurrentPolicy):  # type: ignore[override]  # the acting side's `probe_frames`
    """The learning side of `Hierq`, which describes the options.

    The loss is the sum of two mean squared TD errors. That of the lower level is the error of QMIX, with the values of
    each agent's current sub-task. That of the upper level has a term for each choice of sub-tasks, with semi-Markov
    returns. Each level has its own mixer; one recurrent network gives the values of both.

    Raises:
        ValueError: an option is out of its range.
    """

    choose = staticmethod(epsilon_greedy)

    def __init__(
        self,
        levels: Levels,
        *,
        mixing: Mixing,
        mixer_embed: int,
        hypernet_size: int,
        double_q: bool,
        upper: Upper,
        **options: Unpack[RecurrentOptions],
    ) -> None:
        self.levels, self.double_q, self.upper = levels, double_q, upper
        self.mixing, self.mixer_embed, self.hypernet_size = mixing, mixer_embed, hypernet_size
        RecurrentPolicy.__init__(self, levels.spec, **options)
        self.fields = levels.fields
        kind, clip = self.options.optimizer, self.options.grad_norm_clip
        optimizer = FlatOptimizer(self._flat, self._online.values(), kind, self.options.learning_rate, clip)
        self._optimizers = {"all": optimizer}

    @property
    def network_spec(self) -> EnvSpec:
        return self.levels.network_spec

    def _make_networks(self) -> tuple[dict[str, nn.Module], dict[str, nn.Module]]:
        self.target_agent = RecurrentAgent(self.network_spec, self.options.hidden_size)
        self.lower_mixer, self.upper_mixer = self._make_mixer(), self._make_mixer()
        self.target_lower_mixer, self.target_upper_mixer = self._make_mixer(), self._make_mixer()
        return (
            {"agent": self.agent, "lower_mixer": self.lower_mixer, "upper_mixer": self.upper_mixer},
            {
                "agent": self.target_agent,
                "lower_mixer": self.target_lower_mixer,
                "upper_mixer": self.target_upper_mixer,
            },
        )

    def _make_mixer(self) -> nn.Module:
        if self.mixing == "vdn":
            return Summed()
        sizes = (self.spec.n_agents, self.spec.state_size, self.mixer_embed, self.hypernet_size)
        return MonotonicMixer(*sizes, compiled=self.options.compiled)

    def _make_acting(self) -> HierarchicalActing:
        return HierarchicalActing(self.levels, hidden_size=self.options.hidden_size, upper=self.upper)

    def _done(self, batch: EpisodeBatch) -> NDArray[np.int64]:
        return self.levels.done(batch.steps("subtask"), batch.steps("actions"))

    def _check(self, batch: EpisodeBatch) -> None:
        super()._check(batch)
        subtask = batch.fields.get("subtask")
        if subtask is None or subtask.shape != batch.actions.shape:
            said = "nothing" if subtask is None else f"shape {subtask.shape}"
            raise ValueError(f"batch.subtask: expected shape {batch.actions.shape}, got {said}")

    def learn(self, batch: EpisodeBatch) -> TrainStepResult:
        """Make one gradient step on `batch`.

        Raises:
            ValueError: an array of the batch does not have the shape that the others and the spec demand.
            FloatingPointError: the gradient is not finite; no parameter has changed then.
        """
        optimizer = self._optimizers["all"]
        with own_threads():
            steps = self.prepared(batch)
            with torch.no_grad():
                said_target = self.values(self.target_agent, steps)
            said = self.values(self.agent, steps)
            taken, target = self._lower(said, said_target, batch, steps)
            lower = (steps.weights * (taken - target).square()).mean()
            upper = self._upper_loss(said, said_target, batch, steps)
            norm = optimizer.step(lower + upper, f"update {self.updates}")
            metrics = {
                "loss": float((lower + upper).detach()),
                "lower_loss": float(lower.detach()),
                "upper_loss": float(upper.detach()),
                "grad_norm": norm,
                **self._shares(batch),
            }
            result = self._result(metrics, taken.detach(), target, batch, steps.packing)
        self._learned()
        if self.updates % self.options.target_update_interval == 0:
            self.update_targets()
        return result

    def values(self, agent: RecurrentAgent, steps: PackedSteps) -> Tensor:
        """Return the outputs of `agent` in every frame, (F, A, V)."""
        return agent.values(steps.inputs)

    def _lower(
        self, said: Tensor, said_target: Tensor, batch: EpisodeBatch, steps: PackedSteps
    ) -> tuple[Tensor, Tensor]:
        """Return the team's values of the actions (N, 1), with a gradient, and their targets (N, 1)."""
        subtasks, in_frames = self._subtasks(batch, steps)
        parts = self.levels.parts
        q = _sums(said, steps.departs, torch.from_numpy(parts[subtasks, steps.actions.numpy(force=True)]))
        with torch.no_grad():
            arrived = np.arange(steps.n_episodes, len(in_frames))
            within, available = in_frames[arrived], steps.available.numpy(force=True)[arrived]
            refused = torch.from_numpy(~self.levels.offered(available, within)).to(self._device)
            picks = (said if self.double_q else said_target)[steps.n_episodes :]
            values_within = self._of_subtask(picks, torch.from_numpy(within).to(self._device))
            best = values_within.masked_fill_(refused, -torch.inf).argmax(2).numpy(force=True)
            values = _sums(said_target, torch.from_numpy(arrived), torch.from_numpy(parts[within, best]))
            target = self.targets(self.target_lower_mixer(values, steps.state_tp1), batch, steps)
        return self.lower_mixer(q, steps.state_t), target

    def _subtasks(self, batch: EpisodeBatch, steps: PackedSteps) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the sub-tasks of each step (N, A) and frame (F, A); the last frame has those of the last step."""
        subtasks = batch.steps("subtask")[steps.packing.steps]
        in_frames = np.empty((len(steps.packing.frames), self.spec.n_agents), np.int64)
        in_frames[steps.n_episodes :] = subtasks
        in_frames[steps.packing.departs] = subtasks
        return subtasks, in_frames

    def _shares(self, batch: EpisodeBatch) -> dict[str, float]:
        """Return the share of each sub-task in all agents' steps: `subtask/NAME`."""
        counts = np.bincount(batch.steps("subtask").reshape(-1), minlength=self.levels.n_subtasks)
        shares = counts / counts.sum()
        return {f"subtask/{task.name}": float(x) for task, x in zip(self.spec.subtasks, shares, strict=True)}

    def _of_subtask(self, said: Tensor, subtasks: Tensor) -> Tensor:
        """Return the values (F, A, U) of the actions in each agent's sub-task (F, A)."""
        n_subtasks, size = self.levels.n_subtasks, sum(self.levels.grid)
        lower = said[..., n_subtasks:].reshape(*said.shape[:-1], n_subtasks, size)
        index = subtasks[..., None, None].expand(*subtasks.shape, 1, size)
        return by_part(lower.gather(2, index).squeeze(2), self.levels.grid)

    def _upper_loss(self, said: Tensor, said_target: Tensor, batch: EpisodeBatch, steps: PackedSteps) -> Tensor:
        """Return the weighted mean squared error of the choices of sub-tasks."""
        choices = Choices(batch.lengths, batch.longest, self.levels.subtask_steps)
        frame_of, n = np.empty_like(steps.packing.frames), self.levels.n_subtasks
        frame_of[steps.packing.frames] = np.arange(len(frame_of))
        row = (np.cumsum(batch.lengths + 1) - (batch.lengths + 1))[choices.episode]
        begin, end = (torch.from_numpy(frame_of[row + t]).to(self._device) for t in (choices.begins, choices.ends))
        chosen = torch.from_numpy(batch["subtask"][choices.episode, choices.begins])  # (M, A)
        q = _sums(said, begin, chosen.unsqueeze(2))
        with torch.no_grad():
            ahead, ahead_target = said[end, :, :n], said_target[end, :, :n]
            best = (ahead if self.double_q else ahead_target).argmax(2, keepdim=True)
            values = self.target_upper_mixer(ahead_target.gather(2, best).squeeze(2), steps.state[end])
            at_end = values[:, 0].numpy(force=True).astype(np.float64)
            at_end[choices.is_last & batch.terminated[choices.episode]] = 0.0
            options = self.options
            returns = choices.returns(batch.reward, at_end, gamma=options.gamma, td_lambda=options.td_lambda)
            target = torch.from_numpy(returns).to(self._device, self._dtype).unsqueeze(1)
            weights = torch.from_numpy(batch.weights[choices.episode]).to(self._device, self._dtype).unsqueeze(1)
        loss: Tensor = (weights * (self.upper_mixer(q, steps.state[begin]) - target).square()).mean()
        return loss
