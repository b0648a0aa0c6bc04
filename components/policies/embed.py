"""relu(obs W + a row picked from a table), the layer before the GRU, in memory that is reused by every call.

Sizes: L living rows, O inputs, H units, P rows of the table (`AgentInputs`).
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from components.policies import kernel
from components.policies.scratch import Scratch


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, obs: Tensor, w: Tensor, pairs: Tensor, table: Tensor, scratch: Scratch) -> Tensor:
        n_pairs = len(table)
        x = scratch.take("embedded", (n_pairs + len(obs), len(w)), obs.dtype)
        torch.mm(obs, w.t(), out=x[n_pairs:])
        kernel.rectify(x.numpy(), table.detach().contiguous().numpy(), pairs.numpy())
        ctx.save_for_backward(obs, pairs, x)
        ctx.scratch, ctx.n_pairs = scratch, n_pairs
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_x: Tensor) -> tuple[Tensor | None, ...]:
        obs, pairs, x = ctx.saved_tensors
        d_sum = ctx.scratch.take("d_embedded", (len(obs), x.shape[1]), x.dtype)
        d_table = x.new_empty(ctx.n_pairs, x.shape[1])
        kernel.rectify_back(x.numpy(), pairs.numpy(), d_x.contiguous().numpy(), d_sum.numpy(), d_table.numpy())
        return None, d_sum.t() @ obs, None, d_table, None


def embed(obs: Tensor, w: Tensor, pairs: Tensor, table: Tensor, scratch: Scratch) -> Tensor:
    """Return relu of `table` and, below it, of obs W^T + table[pairs]: (P + L, H), there until the next call.

    Args:
        obs: (L, O); no gradient flows back to it.
        w: (H, O).
        pairs: (L,), rows of `table`.
        table: (P, H).
        scratch: where the result lies, unless on a GPU.
    """
    if obs.is_cuda:
        return embedded_by_torch(obs, w, pairs, table)
    x: Tensor = _Embed.apply(obs, w, pairs, table, scratch)  # type: ignore[no-untyped-call]  # torch's
    return x


def embedded_by_torch(obs: Tensor, w: Tensor, pairs: Tensor, table: Tensor) -> Tensor:
    """Do as `embed`, by operations of torch in memory of their own."""
    living = torch.addmm(torch.nn.functional.embedding(pairs, table), obs, w.t())
    return torch.cat([table, living]).relu()
