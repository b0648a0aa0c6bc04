"""Inputs of the agents' network in a batch. Rows of dead agents, which see nothing, are separate."""

from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from components.policies import kernel
from components.policies.packing import Packing
from components.policies.parallel import run_parts


@dataclass(frozen=True, slots=True)
class LivingRows:
    """The L rows of a part whose observation is not all zeros."""

    obs: Tensor  # (L, O)
    pairs: Tensor  # (L,): (last action + 1) * A + agent


@dataclass(frozen=True, slots=True)
class AgentInputs:
    """The input of every agent in every frame of a packed batch, R rows, agents innermost.

    The observation of a dead agent is all zeros. The layers before the GRU then depend only on the last action and the
    agent's number. There are few such pairs, at most P = (U + 1) * A, so each is computed once for any number of rows.
    All other rows are living rows. Part p has the rows `bounds[p]` to `bounds[p + 1]` of each block, or fewer where the
    block is shorter; so it has whole episodes.
    """

    living: tuple[LivingRows, ...]
    """The living rows of each part."""
    picks: Tensor  # (R,): P + l for living row l of its part, and the pair for any other row
    blocks: NDArray[np.int64]
    """Rows at time 0, 1, 2, …; falling."""
    asked: NDArray[np.int64]
    """Number of rows of each step, from the first, whose outputs are used. Other outputs are finite but meaningless."""
    bounds: tuple[int, ...]
    compiled: bool = True
    """True if the network's values are computed by the compiled loops, false if by operations of torch."""

    @classmethod
    def of(
        cls,
        frames: NDArray[np.float32],  # (F, A, O)
        packing: Packing,
        last_actions: NDArray[np.int64],  # (F, A): -1 at the start of an episode
        *,
        n_actions: int,
        n_parts: int = 1,
        memory: Tensor | None = None,
        compiled: bool = True,
    ) -> "AgentInputs":
        """Gather the frames of a batch, whose outputs may be unused: these are treated as all zeros.

        Observations are written to `memory` (at least F * A, O), if it is given. If not `compiled`, NumPy gathers them
        in new memory, and there is one part.
        """
        if not compiled:
            return cls._by_numpy(frames, packing, last_actions, n_actions)
        n_agents, size = frames.shape[-2:]
        rows = len(packing.frames) * n_agents
        obs = torch.empty(rows, size, dtype=torch.float32) if memory is None else memory
        pairs, picks = np.empty(rows, np.int64), np.empty(rows, np.int64)
        frames = np.ascontiguousarray(frames).view()
        frames.flags.writeable = False  # as in arrays from messages; otherwise numba compiles for two types
        blocks, asked = np.asarray(packing.frame_blocks), np.asarray(packing.asked_blocks)
        bounds = packing.parted(n_parts)
        starts = np.concatenate([[0], np.cumsum(packing.frames_between(bounds))]) * n_agents
        counts = [0] * n_parts

        def collect(part: int, first: int, last: int) -> None:
            start, stop = starts[part : part + 2]
            counts[part] = kernel.collect(
                frames,
                packing.frames,
                blocks,
                asked,
                first,
                last,
                last_actions.reshape(-1),
                (n_actions + 1) * n_agents,
                obs[start:stop].numpy(),
                pairs[start:stop],
                picks,
            )

        run_parts([partial(collect, part, *ends) for part, ends in enumerate(pairwise(bounds))])
        return cls(
            living=tuple(
                LivingRows(obs[start : start + n], torch.from_numpy(pairs[start : start + n]))
                for start, n in zip(starts.tolist(), counts, strict=False)
            ),
            picks=torch.from_numpy(picks),
            blocks=blocks * n_agents,
            asked=asked * n_agents,
            bounds=tuple(bound * n_agents for bound in bounds),
        )

    @classmethod
    def _by_numpy(
        cls, frames: NDArray[np.float32], packing: Packing, last_actions: NDArray[np.int64], n_actions: int
    ) -> "AgentInputs":
        n_agents = frames.shape[1]
        blocks, asked = np.asarray(packing.frame_blocks), np.asarray(packing.asked_blocks)
        rank = np.arange(len(packing.frames)) - np.repeat(np.cumsum(blocks) - blocks, blocks)
        seen = frames[packing.frames]
        lives = seen.any(-1) & (rank < np.repeat(asked, blocks))[:, None]
        pairs = (last_actions + 1) * n_agents + np.arange(n_agents)
        picks = pairs.copy()
        picks[lives] = (n_actions + 1) * n_agents + np.arange(lives.sum())
        return cls(
            living=(LivingRows(torch.from_numpy(seen[lives]), torch.from_numpy(pairs[lives])),),
            picks=torch.from_numpy(picks.reshape(-1)),
            blocks=blocks * n_agents,
            asked=asked * n_agents,
            bounds=(0, int(blocks[0]) * n_agents),
            compiled=False,
        )

    def to(self, device: torch.device, dtype: torch.dtype) -> "AgentInputs":
        """Return a copy on `device`, with observations as `dtype`."""
        living = tuple(
            LivingRows(part.obs.to(device, non_blocking=True).to(dtype), part.pairs.to(device)) for part in self.living
        )
        return AgentInputs(living, self.picks.to(device), self.blocks, self.asked, self.bounds, self.compiled)
