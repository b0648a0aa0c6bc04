"""The last layer of the agents' network: hidden W^T + b, many rows and few columns.

Sizes: R rows, H units, U actions.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

_EVEN = 16
"""Columns that a processor does at once; with 14 a product of matrices takes twice as long as with 16."""


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, w: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(hidden, w)
        return (hidden @ pad(w, (0, 0, 0, -len(w) % _EVEN)).t())[:, : len(w)] + b

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_q: Tensor) -> tuple[Tensor, ...]:
        hidden, w = ctx.saved_tensors
        return d_q @ w, d_q.t() @ hidden, d_q.sum(0)


def head(linear: nn.Linear, hidden: Tensor) -> Tensor:
    """Return what `linear` makes of `hidden` (R, H): (R, U)."""
    if hidden.is_cuda:
        said: Tensor = linear(hidden)
    else:
        said = _Head.apply(hidden, linear.weight, linear.bias)  # type: ignore[no-untyped-call]  # torch's
    return said
