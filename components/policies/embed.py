"""relu(obs W + a row picked from a table), the layer before the GRU, in memory that is kept from call to call.

Sizes: R rows, O inputs, H units, P rows of the table.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from components.policies.scratch import Scratch


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, obs: Tensor, w: Tensor, picks: Tensor, table: Tensor, scratch: Scratch) -> Tensor:
        x = scratch.take("embedded", len(obs), len(w), obs)
        torch.index_select(table, 0, picks, out=x)
        x.addmm_(obs, w.t()).relu_()
        ctx.save_for_backward(obs, picks, x)
        ctx.scratch, ctx.n_picks = scratch, len(table)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_x: Tensor) -> tuple[Tensor | None, ...]:
        obs, picks, x = ctx.saved_tensors
        d_sum = ctx.scratch.take("d_embedded", *x.shape, x)
        torch.ops.aten.threshold_backward(d_x, x, 0.0, grad_input=d_sum)
        d_table = x.new_zeros(ctx.n_picks, x.shape[1]).index_add_(0, picks, d_sum)
        return None, d_sum.t() @ obs, None, d_table, None


def embed(obs: Tensor, w: Tensor, picks: Tensor, table: Tensor, scratch: Scratch) -> Tensor:
    """Return relu(obs W^T + table[picks]), (R, H), which is there until the next call with the same `scratch`.

    Args:
        obs: (R, O); no gradient flows back to it.
        w: (H, O).
        picks: (R,), rows of `table`.
        table: (P, H).
        scratch: where the result lies.
    """
    x: Tensor = _Embed.apply(obs, w, picks, table, scratch)  # type: ignore[no-untyped-call]  # torch's
    return x
