"""Initial parameters of networks."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

InitKind = Literal["uniform", "orthogonal"]


@torch.no_grad()
def initialise(modules: Sequence[nn.Module], kind: InitKind, generator: torch.Generator) -> None:
    """Draw all parameters from `generator` alone, on the CPU, so that they are equal on every device.

    "uniform" is what torch does by default, U(-k, k) with k = 1/√(fan-in). "orthogonal" makes the rows or the columns
    of each weight matrix orthonormal, of each gate's matrix in a GRU, and all biases 0: signals and gradients keep
    their size from layer to layer and from step to step (Saxe et al. 2014; the default of MAPPO, Yu et al. 2022).
    """
    for module in (m for top in modules for m in top.modules()):
        own = list(module.parameters(recurse=False))
        if not own:
            continue
        gates = 3 if isinstance(module, nn.GRU) else 1
        # The weights come first; a bias has the bound of its layer's weights, and torch gives a GRU that of its size.
        bound = 1.0 / math.sqrt(module.hidden_size if isinstance(module, nn.GRU) else own[0].shape[1])
        for p in own:
            drawn = torch.zeros(p.shape, dtype=p.dtype)
            if kind == "uniform":
                drawn.uniform_(-bound, bound, generator=generator)
            elif drawn.ndim > 1:
                for gate in drawn.chunk(gates):
                    _orthogonal(gate, generator)
            p.copy_(drawn)


def _orthogonal(w: Tensor, generator: torch.Generator) -> None:
    """Draw `w` uniformly from the matrices whose rows, or columns if there are fewer of these, are orthonormal."""
    tall = max(w.shape), min(w.shape)
    q, r = torch.linalg.qr(torch.empty(tall, dtype=w.dtype).normal_(generator=generator))
    q *= r.diagonal().sign()  # otherwise the factorisation would choose the signs
    w.copy_(q if w.shape == tall else q.t())
