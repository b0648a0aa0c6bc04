"""Learning of PQN: λ-returns of the learning network, from its own steps, without target network or replay buffer.

Letters in shapes: E segments, T steps, N steps and F = N + E frames of all segments in packed order (see `packing`), A
agents, M = 1 team value or A agents' values each, I inputs, U actions, H units.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from components.policies.base import EpisodeBatch, TrainStepResult
from components.policies.chunks import rows_of
from components.policies.gru import unrolled
from components.policies.modules import TwoSidedPolicy
from components.policies.optimizer import FlatOptimizer
from components.policies.packing import Packing
from components.policies.parallel import own_threads, parts_of, summed_parts
from components.policies.pqn_acting import PqnActing, QSizes
from components.policies.returns import lambda_returns


@dataclass(frozen=True, slots=True, kw_only=True)
class PqnLearning:
    """Settings of PQN's learning; the classes in `pqn` have the defaults."""

    learning_rate: float
    anneal: int
    epochs: int
    minibatches: int
    gamma: float
    td_lambda: float
    grad_norm_clip: float
    reward_scale: float
    vdn: bool
    """Learn one value of the team, the sum of its agents' values (Sunehag et al. 2018)."""


class QNetwork(nn.Module):
    """Layers, each linear → LayerNorm → ReLU, [GRU], head; `pqn_acting` has the same in NumPy."""

    def __init__(self, sizes: QSizes) -> None:
        super().__init__()
        size = sizes.hidden_size
        self.layers = nn.ModuleList()
        for before, after in pairwise([sizes.n_inputs, *[size] * sizes.layers]):
            self.layers.append(nn.Sequential(nn.Linear(before, after), nn.LayerNorm(after), nn.ReLU()))
        self.gru = nn.GRU(size, size) if sizes.recurrent else None
        self.head = nn.Linear(size, sizes.spec.n_actions)

    def forward(self, x: Tensor, hidden: Tensor | None, blocks: tuple[int, ...]) -> Tensor:
        """Return the action values (F, A, U).

        Args:
            x: (F, A, I).
            hidden: (E, A, H), state before the first frame of each segment, the longest first; None without a GRU.
            blocks: number of segments that have a frame 0, 1, 2, …
        """
        rows = x.flatten(0, 1)
        for layer in self.layers:
            rows = layer(rows)
        if self.gru is not None and hidden is not None:
            counts = torch.tensor(blocks) * x.shape[1]
            packed, _ = unrolled(self.gru, PackedSequence(rows, counts), hidden.flatten(0, 1).unsqueeze(0))
            rows = packed.data
        values: Tensor = self.head(rows).view(*x.shape[:2], -1)
        return values


@dataclass(frozen=True, slots=True)
class Segments:
    """Some segments of a batch, packed."""

    packing: Packing
    inputs: Tensor  # (F, A, I)
    available: Tensor  # (F, A, U)
    actions: Tensor  # (N, A)
    hidden: Tensor | None  # (E, A, H), the longest first
    reward: NDArray[np.float32]  # (N, 1), or (N, A) where each agent has its own
    terminated: NDArray[np.bool_]  # (E,)


@dataclass(frozen=True, slots=True)
class Minibatch:
    """Steps or segments to learn from together."""

    items: NDArray[np.int64]  # numbers of the steps or segments
    n_steps: int
    values_of: Callable[[NDArray[np.int64]], tuple[Tensor, Tensor]]
    """Returns the values of the actions taken in some of the items, and their targets, (n, M) each."""


class PqnLearner(TwoSidedPolicy):
    """A network of action values that learns from steps of its present parameters, several times over.

    Args:
        sizes: sizes of the network and of the environment.
        learning: settings of learning.
        seed: seed of the initial parameters and of minibatches.
        device: as for `ModulePolicy`.
    """

    def __init__(self, sizes: QSizes, learning: PqnLearning, *, seed: int, device: str) -> None:
        self.sizes, self.learning, self._seed = sizes, learning, seed
        self.fields = PqnActing(sizes).fields
        super().__init__(sizes.spec, seed=seed, device=device)
        rate, clip = learning.learning_rate, learning.grad_norm_clip
        self._optimizers = {"all": FlatOptimizer(self._flat, [self.network], "radam", rate, clip)}

    def _make_networks(self) -> tuple[dict[str, nn.Module], dict[str, nn.Module]]:
        self.network = QNetwork(self.sizes)
        return {"network": self.network}, {}

    def _make_acting(self) -> PqnActing:
        return PqnActing(self.sizes)

    def learn(self, batch: EpisodeBatch) -> TrainStepResult:
        """Make one update: all its epochs and minibatches.

        Raises:
            FloatingPointError: a gradient is not finite; the step has changed nothing then.
        """
        learning, optimizer = self.learning, self._optimizers["all"]
        left = max(1.0 - self.updates / learning.anneal, 0.0) if learning.anneal else 1.0
        optimizer.learning_rate = learning.learning_rate * left
        sums, made = np.zeros(5), 0
        with own_threads():
            for minibatch in self._minibatches(batch):
                figures, gradient = self._gradient(minibatch)
                optimizer.gradient.copy_(gradient)
                sums += [*figures.tolist(), optimizer.descend(f"update {self.updates}")]
                made += 1
        self._learned()
        names = ("loss", "q_taken", "target", "td_error", "grad_norm")
        means = dict(zip(names, (sums / made).tolist(), strict=True))
        metrics = {**means, "steps_learned": float(batch.lengths.sum())}
        return TrainStepResult(metrics, np.ones(len(batch.lengths), np.float32))

    def _gradient(self, minibatch: Minibatch) -> list[Tensor]:
        """Return the loss, the means of values, targets and errors (4,), and the gradient (P,).

        Threads share the parts of the minibatch.
        """
        parts = parts_of(len(minibatch.items), minibatch.n_steps * self.spec.n_agents, self._device)

        def share_of(part: slice) -> list[Tensor]:
            taken, target = minibatch.values_of(minibatch.items[part])
            share = 1.0 / (minibatch.n_steps * taken.shape[1])
            loss, told = 0.5 * (taken - target).square().sum() * share, taken.detach()
            sums = torch.stack([told.sum(), target.sum(), (told - target).abs().sum()]) * share
            return [torch.cat([loss.detach().unsqueeze(0), sums]), self._optimizers["all"].gradient_of(loss)]

        return summed_parts(parts, share_of)

    def _minibatches(self, batch: EpisodeBatch) -> Iterator[Minibatch]:
        """Yield the minibatches of each epoch: some steps, or with a GRU some segments, from their recorded states.

        Targets are computed once.
        """
        rng, whole = np.random.default_rng((self._seed, self.updates)), self.segments(batch)
        with torch.no_grad():
            targets = self.targets(whole, self.values(whole))
        if self.sizes.recurrent:
            in_order = torch.empty_like(targets)  # (N, M): segment after segment
            in_order[torch.from_numpy(whole.packing.steps)] = targets

            def of_segments(some: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
                part = self.segments(batch.select(some))
                at = torch.from_numpy(rows_of(some, batch.lengths)[part.packing.steps])
                return self.taken(part, self.values(part)), in_order[at]

            for some in self._shuffled(len(batch), rng):
                yield Minibatch(some, int(batch.lengths[some].sum()), of_segments)
            return
        inputs = whole.inputs[torch.from_numpy(whole.packing.departs).to(self._device)]

        def of_steps(some: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
            at = torch.from_numpy(some).to(self._device)
            q = self.network(inputs[at], None, ())
            return self.mixed(q.gather(2, whole.actions[at].unsqueeze(2)).squeeze(2)), targets[at]

        for some in self._shuffled(len(targets), rng):
            yield Minibatch(some, len(some), of_steps)

    def _shuffled(self, n: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """Yield the minibatches of all epochs: each of n indices is in one minibatch of each epoch."""
        for _ in range(self.learning.epochs):
            yield from np.array_split(rng.permutation(n), min(self.learning.minibatches, n))

    def values(self, segments: Segments) -> Tensor:
        """Return the action values (F, A, U) of all frames."""
        values: Tensor = self.network(segments.inputs, segments.hidden, segments.packing.frame_blocks)
        return values

    def taken(self, segments: Segments, q: Tensor) -> Tensor:
        """Return the values (N, M) of the action taken in each step, from the values (F, A, U) of all frames."""
        departs = torch.from_numpy(segments.packing.departs).to(self._device)
        return self.mixed(q[departs].gather(2, segments.actions.unsqueeze(2)).squeeze(2))

    def targets(self, segments: Segments, q: Tensor) -> Tensor:
        """Return the λ-returns (N, M) of all steps, from the values (F, A, U) of all frames."""
        packing, learning = segments.packing, self.learning
        best = torch.where(segments.available, q, -torch.inf).argmax(2, keepdim=True)
        value = self.mixed(q.gather(2, best).squeeze(2))  # in every frame
        ahead = value[len(packing.last) :].numpy(force=True).copy()  # step k arrives at frame k + E
        ahead[packing.last[segments.terminated]] = 0.0  # any other segment keeps the value of its last frame
        reward = segments.reward * np.float32(learning.reward_scale)
        returns = lambda_returns(reward, ahead, packing.step_blocks, gamma=learning.gamma, td_lambda=learning.td_lambda)
        return torch.from_numpy(returns).to(self._device)

    def mixed(self, values: Tensor) -> Tensor:
        """Return the learned values (n, M), from the values of agents (n, A)."""
        return values.sum(1, keepdim=True) if self.learning.vdn else values

    def segments(self, batch: EpisodeBatch) -> Segments:
        """Return the segments of a batch, packed."""
        packing, n = Packing.of(batch.lengths, batch.terminated), len(batch)
        actions, hidden = batch.steps("actions")[packing.steps], None
        before = np.full((len(packing.frames), self.spec.n_agents), -1)
        if self.sizes.recurrent:
            order = packing.episode[:n]  # segments, the longest first: each has a first step
            before[:n] = batch["before"][order]
            before[n:] = actions
            hidden = self._tensor(batch["hidden"][order])
        reward = batch.steps("reward")[packing.steps]
        return Segments(
            packing=packing,
            inputs=self._tensor(self.sizes.inputs(batch.frames("obs")[packing.frames], before)),
            available=torch.from_numpy(batch.frames("available")[packing.frames]).to(self._device),
            actions=torch.from_numpy(actions).to(self._device),
            hidden=hidden,
            reward=reward if reward.ndim == 2 else reward[:, None],
            terminated=batch.terminated,
        )

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device, self._dtype)
