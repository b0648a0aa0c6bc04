"""The mixing network of QMIX on a CPU, its steps shared by threads.

Sizes: N steps, A agents, S state size, K units of the hypernetworks' hidden layers, M units of the mixing layer.
"""

from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from components.policies import kernel
from components.policies.kernel.product import GROUP, padded
from components.policies.kernel.tile import ROWS
from components.policies.parallel import run_parts, summed

GROUPS_OF_A_PART = 5
"""Groups, of GROUP steps each, that make a part: the least work worth a thread of its own."""


class Mixing(torch.autograd.Function):
    """The operation `MonotonicMixer.by_torch` with its gradients, except the gradient of the state."""

    @staticmethod
    def forward(
        ctx: Any,
        keeps: bool,
        q: Tensor,  # (N, A)
        state: Tensor,  # (N, S)
        w_first: Tensor,  # (2K + 2M, S): for the inputs of W_1, w_2 and v, and for b_1
        b_first: Tensor,
        w_w_1: Tensor,  # (A * M, K)
        b_w_1: Tensor,
        w_w_2: Tensor,  # (M, K)
        b_w_2: Tensor,
        w_v: Tensor,  # (1, M)
        b_v: Tensor,
    ) -> Tensor:
        n, columns = len(q), (len(w_first), len(w_w_1), len(w_w_2), len(w_w_2))
        total, starts = q.new_empty(n, 1), [*range(0, n, GROUPS_OF_A_PART * GROUP), n]
        given = [x.detach().contiguous().numpy() for x in (q, state)]
        panels = kernel.packed_mixer(*(x.detach().numpy() for x in (w_first, w_w_1, w_w_2)))
        weights = [panels, *(x.detach().numpy() for x in (b_first, b_w_1, b_w_2, w_v, b_v))]
        kept: list[Tensor] = []
        parts = []
        for ends in pairwise(starts):
            # With a backward pass, memory is kept for all steps; otherwise for one group.
            if not kept or not keeps:
                kept = [q.new_empty((n if keeps else GROUP) + ROWS, padded(size, given[0])) for size in columns]
            memory = [x.numpy() for x in kept]
            arguments: list[Any] = [*given, *ends, *weights, *memory, keeps, total.numpy()]
            parts.append(partial(kernel.mix, *arguments))
        run_parts(parts)
        ctx.save_for_backward(q, state, w_first, b_first, w_w_1, b_w_1, w_w_2, b_w_2, w_v, b_v)
        ctx.kept, ctx.starts = kept, starts
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_total: Tensor) -> tuple[Tensor | None, ...]:
        q, state, *weights = (x.detach() for x in ctx.saved_tensors)
        _, _, w_w_1, _, w_w_2, _, w_v, _ = weights
        d_q, q, state = torch.empty_like(q, memory_format=torch.contiguous_format), q.contiguous(), state.contiguous()
        given = [x.numpy() for x in (d_total.contiguous(), q, state)]
        panels = kernel.packed_mixer_back(w_w_1.numpy(), w_w_2.numpy())
        between = [panels, *(x.numpy() for x in (w_v, *ctx.kept, d_q))]
        parts, shares = [], []
        for ends in pairwise(ctx.starts):
            share = [torch.empty_like(w, memory_format=torch.contiguous_format) for w in weights]
            arguments: list[Any] = [*given, *ends, *between, *(d.numpy() for d in share)]
            parts.append(partial(kernel.mix_back, *arguments))
            shares.append(share)
        run_parts(parts)
        return None, d_q, None, *summed(shares)
