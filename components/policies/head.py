"""The last layer of the agents' network: hidden W^T + b, many rows and few columns.

Sizes: R rows, H units, U actions.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from components.policies import kernel
from components.policies.kernel.product import GROUP, panels_of, room


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, w: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(hidden, w)
        q, weights = hidden.new_empty(len(hidden), len(w)), w.detach().t().numpy()
        sums = room(GROUP, len(w), weights.dtype)
        kernel.say(hidden.detach().numpy(), panels_of(weights), b.detach().numpy(), sums, q.numpy())
        return q

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_q: Tensor) -> tuple[Tensor, ...]:
        hidden, w = ctx.saved_tensors
        back = torch.empty_like(hidden), torch.zeros_like(w), w.new_zeros(len(w))
        told = d_q.contiguous().numpy()
        kernel.say_back(told, hidden.detach().numpy(), w.detach().numpy(), *(d.numpy() for d in back))
        return back


def head(linear: nn.Linear, hidden: Tensor) -> Tensor:
    """Return what `linear` makes of `hidden` (R, H): (R, U)."""
    if hidden.is_cuda:
        said: Tensor = linear(hidden)
    else:
        said = _Head.apply(hidden, linear.weight, linear.bias)  # type: ignore[no-untyped-call]  # torch's
    return said
