"""Initial parameters of networks."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

InitKind = Literal["uniform", "orthogonal"]
_GATES = {nn.GRU: 3, nn.GRUCell: 3, nn.LSTM: 4, nn.LSTMCell: 4, nn.RNN: 1, nn.RNNCell: 1}
"""Number of gates of recurrent layers; the matrices of the gates are stacked."""
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@torch.no_grad()
def initialise(modules: Sequence[nn.Module], kind: InitKind, generator: torch.Generator) -> None:
    """Draw the parameters of layers from `generator` alone, on the CPU, so that they are equal on every device.

    Layers are linear, convolutional and recurrent ones. All other modules, such as LayerNorm and Embedding, layers
    whose weights are computed from others (`weight_norm`), and parameters that a module of its own makes keep the
    values of their constructor.

    "uniform" is torch's default, U(-k, k) with k = 1/√(fan-in). "orthogonal" makes the rows or the columns of each
    weight matrix (in a GRU of each gate's matrix) orthonormal, and all biases 0: signals and gradients keep their size
    from layer to layer and from step to step (Saxe et al. 2014; the default of MAPPO, Yu et al. 2022).
    """
    for module in dict.fromkeys(m for top in modules for m in top.modules()):
        gates = _GATES.get(type(module))
        if gates is None and not (isinstance(module, _LAYERS) and "weight" in module._parameters):
            continue
        own = list(module.parameters(recurse=False))
        # The weights come first; a bias has the bound of its layer's weights. In a GRU torch takes the hidden size.
        fan_in = own[0][0].numel() if gates is None else int(module.hidden_size)  # type: ignore[arg-type]  # an int
        bound = 1.0 / math.sqrt(fan_in)
        for p in own:
            drawn = torch.zeros(p.shape, dtype=p.dtype)
            if kind == "uniform":
                drawn.uniform_(-bound, bound, generator=generator)
            elif drawn.ndim > 1:
                for gate in drawn.chunk(gates or 1):
                    _orthogonal(gate.view(len(gate), -1), generator)
            p.copy_(drawn)


def _orthogonal(w: Tensor, generator: torch.Generator) -> None:
    """Draw `w` uniformly from the matrices whose rows, or columns if there are fewer of these, are orthonormal."""
    tall = max(w.shape), min(w.shape)
    q, r = torch.linalg.qr(torch.empty(tall, dtype=w.dtype).normal_(generator=generator))
    q *= r.diagonal().sign()  # otherwise the factorisation determines the signs
    w.copy_(q if w.shape == tall else q.t())
