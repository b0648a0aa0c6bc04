"""The mixing network of QMIX on a CPU: products of matrices, and one compiled loop over the steps each way.

Sizes: N steps, A agents, S state size, K units of the hypernetworks' hidden layers, M units of the mixing layer.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from components.policies import kernel


class Mixing(torch.autograd.Function):
    """`MonotonicMixer.by_torch`, and its gradients but that of the state."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,  # (N, A)
        state: Tensor,  # (N, S)
        w_first: Tensor,  # (2K + 2M, S): of what W_1, w_2 and v are made of, and of b_1
        b_first: Tensor,
        w_w_1: Tensor,  # (A * M, K)
        b_w_1: Tensor,
        w_w_2: Tensor,  # (M, K)
        b_w_2: Tensor,
        w_v: Tensor,  # (1, M)
        b_v: Tensor,
    ) -> Tensor:
        k, m = w_w_1.shape[1], len(w_w_2)
        first = torch.addmm(b_first, state, w_first.t())
        first[:, : 2 * k + m].relu_()
        w_1 = torch.addmm(b_w_1, first[:, :k], w_w_1.t())
        w_2 = torch.addmm(b_w_2, first[:, k : 2 * k], w_w_2.t())
        mixed, total, q = torch.empty_like(w_2), q.new_empty(len(q), 1), q.contiguous()
        v = w_v.detach()[0].contiguous()
        kernel.mix(*(x.detach().numpy() for x in (q, first, w_1, w_2, v, mixed, total)))
        ctx.save_for_backward(q, state, first, w_w_1, w_w_2, w_1, w_2, v, mixed)
        return total.add_(b_v)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_total: Tensor) -> tuple[Tensor | None, ...]:
        q, state, first, w_w_1, w_w_2, w_1, w_2, v, mixed = ctx.saved_tensors
        k = w_w_1.shape[1]
        d_total = d_total.contiguous()
        d_q, d_first, d_w_1, d_w_2 = (torch.empty_like(x) for x in (q, first, w_1, w_2))
        d_v = torch.zeros_like(v)
        saved = (q.detach(), first, w_1, w_2, v, mixed)
        kernel.mix_back(*(x.numpy() for x in (d_total, *saved, d_q, d_first, d_w_1, d_w_2, d_v)))
        torch.mm(d_w_1, w_w_1, out=d_first[:, :k])
        torch.mm(d_w_2, w_w_2, out=d_first[:, k : 2 * k])
        d_hyper, hyper = d_first[:, : 2 * k], first[:, : 2 * k]
        torch.ops.aten.threshold_backward(d_hyper, hyper, 0.0, grad_input=d_hyper)
        return (
            d_q,
            None,
            d_first.t() @ state,
            d_first.sum(0),
            d_w_1.t() @ hyper[:, :k],
            d_w_1.sum(0),
            d_w_2.t() @ hyper[:, k:],
            d_w_2.sum(0),
            d_v.unsqueeze(0),
            d_total.sum(0),
        )
