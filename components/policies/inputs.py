"""Inputs of the agents' network in a batch. Rows of dead agents, which see nothing, are separate."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from components.policies import kernel
from components.policies.packing import Packing


@dataclass(frozen=True, slots=True)
class AgentInputs:
    """The input of every agent in every frame of a packed batch, R rows, agents innermost.

    The observation of a dead agent is all zeros. The layers before the GRU then depend only on the last action and the
    agent's number alone, and there are few such pairs, P = (U + 1) * A: they are computed once, whatever the number of
    rows. The L others are living rows.
    """

    obs: Tensor  # (L, O)
    pairs: Tensor  # (L,): (last action + 1) * A + agent of a living row
    picks: Tensor  # (R,): P + l of the living row l, and its pair of any other
    blocks: tuple[int, ...]
    """Rows at time 0, 1, 2, …; falling."""
    asked: tuple[int, ...]
    """Rows of each step, from the first, whose outputs are used. Outputs of the others are finite but meaningless."""

    @classmethod
    def of(
        cls,
        padded: NDArray[np.float32],  # (…, A, O)
        packing: Packing,
        last_actions: NDArray[np.int64],  # (F, A): -1 at the start of an episode
        *,
        n_actions: int,
        memory: Tensor | None = None,
    ) -> "AgentInputs":
        """Gather the frames of a padded batch. Those that nobody asks for pass for frames that see nothing.

        `obs` comes to lie in `memory` (at least F * A, O), if there is any.
        """
        n_agents, size = padded.shape[-2:]
        rows = len(packing.frames) * n_agents
        obs = torch.empty(rows, size, dtype=torch.float32) if memory is None else memory
        pairs, picks = np.empty(rows, np.int64), np.empty(rows, np.int64)
        padded = padded.reshape(-1, n_agents, size).view()
        padded.flags.writeable = False  # as one that came over the wire, or there would be two types to compile for
        living = kernel.collect(
            padded,
            packing.frames,
            np.asarray(packing.frame_blocks),
            np.asarray(packing.asked_blocks),
            last_actions.reshape(-1),
            (n_actions + 1) * n_agents,
            obs.numpy(),
            pairs,
            picks,
        )
        return cls(
            obs=obs[:living],
            pairs=torch.from_numpy(pairs[:living]),
            picks=torch.from_numpy(picks),
            blocks=tuple(block * n_agents for block in packing.frame_blocks),
            asked=tuple(block * n_agents for block in packing.asked_blocks),
        )

    def to(self, device: torch.device, dtype: torch.dtype) -> "AgentInputs":
        """Return it on `device`, observations as `dtype`."""
        obs = self.obs.to(device, non_blocking=True).to(dtype)
        return AgentInputs(obs, self.pairs.to(device), self.picks.to(device), self.blocks, self.asked)
