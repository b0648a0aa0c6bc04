"""The gradient of IQL, VDN and QMIX on a CPU: a part of the batch is one compiled call, from its arrays to its share.

Threads wait for each other once in a gradient step, at its end, and autograd is not used. `Iql.td_loss` computes the
same with autograd, for algorithms with another loss.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from components.envs.base import EnvSpec
from components.policies import kernel
from components.policies.agent import APART
from components.policies.base import EpisodeBatch
from components.policies.kernel.product import padded
from components.policies.kernel.tile import ROWS
from components.policies.packing import longest_first, parted
from components.policies.parallel import run_parts
from components.policies.scratch import Scratch, cut


@dataclass(frozen=True, slots=True)
class TdSums:
    """Results that come with a gradient."""

    metrics: dict[str, float]
    """`loss`, and the means `q_taken` (values of the taken actions), `target` and `td_error`."""
    errors: NDArray[np.float64]  # (N,): mean |TD error| of a step's values


class TdParts:
    """Computes gradients of the weighted mean squared TD error.

    Args:
        spec: sizes of the environment.
        mixing: `kernel.UNMIXED`, `kernel.SUMMED` or `kernel.MONOTONIC`.
        double_q: as for `Iql`.
        gamma: the discount.
        td_lambda: λ of the returns.
    """

    def __init__(self, spec: EnvSpec, mixing: int, *, double_q: bool, gamma: float, td_lambda: float) -> None:
        self.spec, self.mixing, self.double_q, self.gamma, self.td_lambda = spec, mixing, double_q, gamma, td_lambda
        self._idle: deque[Scratch] = deque()  # as many as the most threads at a time so far
        self._shares = Scratch()

    def gradient(
        self, batch: EpisodeBatch, n_parts: int, online: Sequence[Tensor], target: Sequence[Tensor], *, out: Tensor
    ) -> TdSums:
        """Fill `out` (P,) with the gradient of the parameters `online`, in their order.

        Args:
            batch: a valid batch.
            n_parts: number of parts of it that threads may share.
            online: parameters of the agents, then of the mixer.
            target: parameters of the target networks.
            out: filled.

        Raises:
            ValueError: a length is not in 1 … T.
        """
        order = longest_first(batch.lengths, batch.terminated)
        n_steps = int(batch.lengths.sum())
        n_values = n_steps * (self.spec.n_agents if self.mixing == kernel.UNMIXED else 1)
        arrays = self._arrays(batch)
        weights = self._with_mixer([w.detach().numpy() for w in online])
        of_target = self._with_mixer([w.detach().numpy() for w in target])
        panels = kernel.td_panels(weights, of_target, self.spec.obs_size)
        shares = self._shares.take("shares", (n_parts, len(out)), out.dtype).numpy()
        sums, errors = np.zeros((n_parts, 4)), np.empty(n_steps)
        shapes, sizes, parts = [tuple(w.shape) for w in online], [w.numel() for w in online], []
        for part, (first, last) in enumerate(pairwise(parted(batch.lengths[order] + 1, n_parts))):
            if first == last:
                shares[part] = 0.0
                continue
            given = (arrays, order[first:last], weights, of_target, panels, cut(shares[part], shapes, sizes))
            parts.append(partial(self._learn_part, *given, 1.0 / n_values, sums[part], errors))
        run_parts(parts)
        torch.sum(torch.from_numpy(shares), 0, out=out)
        means = (sums.sum(0) / n_values).tolist()
        metrics = dict(zip(("loss", "q_taken", "target", "td_error"), means, strict=True))
        return TdSums(metrics, errors)

    def _arrays(self, batch: EpisodeBatch) -> tuple[NDArray[Any], ...]:
        """Return the batch for `kernel.td_part`, read-only."""
        arrays = (
            *(batch.frames(name) for name in ("obs", "state", "available")),
            *(batch.steps(name) for name in ("actions", "reward")),
            batch.lengths.astype(np.int64),
            batch.terminated,
            batch.weights,
        )
        found = tuple(np.ascontiguousarray(array).view() for array in arrays)
        for array in found:
            array.flags.writeable = False
        return found

    def _with_mixer(self, weights: list[NDArray[Any]]) -> tuple[NDArray[Any], ...]:
        """Return the weights of agents and mixer, the mixer's empty if there is none."""
        if self.mixing == kernel.MONOTONIC:
            return tuple(weights)
        return (*weights[:8], *([np.empty((1, 1), weights[0].dtype), np.empty(1, weights[0].dtype)] * 4))

    def _learn_part(
        self,
        arrays: tuple[NDArray[Any], ...],
        episodes: NDArray[np.int64],
        weights: tuple[NDArray[Any], ...],
        of_target: tuple[NDArray[Any], ...],
        panels: tuple[tuple[NDArray[Any], ...], ...],
        share: tuple[NDArray[Any], ...],
        scale: float,
        sums: NDArray[np.float64],
        errors: NDArray[np.float64],
    ) -> None:
        try:
            scratch = self._idle.pop()
        except IndexError:
            scratch = Scratch()
        lengths = arrays[5][episodes]
        memory = self._memory(scratch, int(lengths.sum()), len(episodes), weights)
        settings = (self.mixing, self.double_q, self.gamma, self.td_lambda, scale)
        whole_share = self._with_mixer(list(share))
        kernel.td_part(arrays, episodes, *settings, weights, of_target, panels, memory, whole_share, sums, errors)
        self._idle.append(scratch)

    def _memory(
        self, scratch: Scratch, n_steps: int, n_episodes: int, weights: tuple[NDArray[Any], ...]
    ) -> tuple[NDArray[Any], ...]:
        """Return the arrays that `kernel.td_part` overwrites, for a part of this size."""
        spec, size = self.spec, weights[3].shape[1]
        rows, n_pairs = (n_steps + n_episodes) * spec.n_agents, (spec.n_actions + 1) * spec.n_agents
        inputs, values = n_pairs + rows + ROWS, (rows, spec.n_actions)
        x, of_x = ((inputs, padded(columns, weights[0])) for columns in (size, 3 * size))
        shapes = [(rows, spec.obs_size), x, x, of_x]
        shapes += [(rows, size), (rows, 4 * size + APART), (2 * n_episodes * spec.n_agents, size), (1, 4 * size)]
        shapes += [values, values, (rows, 1), (inputs, 3 * size)]
        states = n_steps if self.mixing == kernel.MONOTONIC else 0
        shapes += [(states, spec.state_size)] * 2
        shapes += [(states + ROWS, padded(len(weights[i]), weights[0])) for i in (9, 11, 13, 13)]
        dtype = torch.from_numpy(weights[0]).dtype
        return scratch.take_arrays("memory", shapes, dtype)
