"""A GRU over packed sequences, with its own backward pass.

`torch.nn.GRU` unrolled on a CPU records a dozen small operations per time step, each with memory of its own, and pays
for padding or, on a `PackedSequence`, for cutting the batch at every step. Here the gates are computed in place in
memory that is kept from call to call, the batch shrinks by taking shorter views, and everything that a time step needs,
in either direction, is done while it is in the processor's cache. `benchmarks/learner.py` has the figures.

Sizes: R rows (agents of all frames) in blocks, one block per time step; I inputs, H hidden units.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class Scratch:
    """Tensors by name that are handed out again and again; each is large enough for the largest request so far.

    Fresh memory for tens of megabytes per gradient step costs more in page faults than the arithmetic done in it.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}
        self.passes = 0
        """Forward passes that have written here."""

    def take(self, name: str, rows: int, columns: int, like: Tensor) -> Tensor:
        """Return an uninitialised (rows, columns) tensor, typed as `like`; it overwrites the last of that name."""
        kept = self._kept.get(name)
        if kept is None or kept.numel() < rows * columns:
            kept = self._kept[name] = torch.empty(rows * columns, dtype=like.dtype, device=like.device)
        return kept[: rows * columns].view(rows, columns)


def tanh_(x: Tensor) -> Tensor:
    """Take the hyperbolic tangent in place, as 2 sigmoid(2x) - 1: on a CPU torch's sigmoid is many times as fast."""
    return x.mul_(2.0).sigmoid_().mul_(2.0).sub_(1.0)


class _Unroll(torch.autograd.Function):
    """r, z = sigmoid(x W + h U + b); g = h U_n + c_n; n = tanh(x W_n + b_n + r g); h' = n + z (h - n).

    The gated unit of Cho et al. (2014) in the form of cuDNN and torch: r acts after the product with U_n.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,  # (R, I)
        w_x: Tensor,  # (3H, I): rows of r, z, n
        w_h: Tensor,  # (3H, H)
        b_x: Tensor,  # (3H,)
        b_h: Tensor,  # (3H,)
        blocks: Sequence[int],
        scratch: Scratch,
    ) -> Tensor:
        size, rows = w_h.shape[1], len(x)
        gates = scratch.take("gates", rows, 3 * size, x)  # r, z, n
        inner = scratch.take("inner", rows, size, x)  # g
        hidden = torch.empty(rows, size, dtype=x.dtype, device=x.device)
        bias = torch.cat([b_x[: 2 * size] + b_h[: 2 * size], b_x[2 * size :]])
        w_xt, w_rz, w_n, b_n = w_x.t(), w_h[: 2 * size].t(), w_h[2 * size :].t(), b_h[2 * size :]
        before = torch.zeros(blocks[0], size, dtype=x.dtype, device=x.device)
        stop = 0
        for block in blocks:  # all of a step at once, while it is in the processor's cache
            start, stop = stop, stop + block
            before, g = before[:block], inner[start:stop]
            gates_t = torch.addmm(bias, x[start:stop], w_xt, out=gates[start:stop])
            rz, n = gates_t[:, : 2 * size], gates_t[:, 2 * size :]
            rz.addmm_(before, w_rz).sigmoid_()
            torch.addmm(b_n, before, w_n, out=g)
            tanh_(n.addcmul_(rz[:, :size], g))
            before = torch.sub(before, n, out=hidden[start:stop]).mul_(rz[:, size:]).add_(n)
        ctx.save_for_backward(x, w_x, w_h, hidden)
        scratch.passes += 1
        ctx.blocks, ctx.scratch, ctx.gates, ctx.inner, ctx.number = blocks, scratch, gates, inner, scratch.passes
        return hidden

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_hidden: Tensor) -> tuple[Tensor | None, ...]:
        x, w_x, w_h, hidden = ctx.saved_tensors
        blocks, scratch, gates, inner = ctx.blocks, ctx.scratch, ctx.gates, ctx.inner
        if scratch.passes != ctx.number:
            raise RuntimeError("another pass has overwritten what this backward pass needs: go back before going on")
        size = w_h.shape[1]
        d_x = scratch.take("d_x", *x.shape, x)
        d_w_x, d_w_h = torch.zeros_like(w_x), torch.zeros_like(w_h)
        d_b_x, d_b_h = x.new_zeros(3 * size), x.new_zeros(3 * size)
        kept = [scratch.take(name, blocks[0], size, x) for name in ("d_h", "d_n", "a", "b", "carry")]
        d_gates_kept = scratch.take("d_gates", blocks[0], 3 * size, x)
        zeros = torch.zeros(blocks[0], size, dtype=x.dtype, device=x.device)
        stops = [0, *accumulate(blocks)]
        carry = kept[-1][:0]  # what the next step says of the hidden state that it starts from
        for t in range(len(blocks) - 1, -1, -1):
            block, rows = blocks[t], slice(stops[t], stops[t + 1])
            d_h, d_n, a, b, d_before = (tensor[:block] for tensor in kept)
            d_gates = d_gates_kept[:block]  # before the non-linearities, as the product with U sees it
            r, z, n = gates[rows].split(size, dim=1)
            before = hidden[stops[t - 1] : stops[t - 1] + block] if t else zeros
            d_h.copy_(d_hidden[rows])
            d_h[: len(carry)] += carry
            carry = torch.mul(d_h, z, out=d_before)
            torch.sub(before, n, out=b).mul_(carry)
            torch.addcmul(b, b, z, value=-1.0, out=d_gates[:, size : 2 * size])  # d z = d h (h - n) z (1 - z)
            d_h -= carry
            torch.mul(n, n, out=a)
            torch.addcmul(d_h, d_h, a, value=-1.0, out=d_n)  # d n = d h (1 - z) (1 - n²)
            d_g = torch.mul(d_n, r, out=d_gates[:, 2 * size :])
            torch.mul(d_g, inner[rows], out=a)
            torch.addcmul(a, a, r, value=-1.0, out=d_gates[:, :size])  # d r = d n g r (1 - r)
            d_w_h.addmm_(d_gates.t(), before)
            d_b_h += d_gates.sum(0)
            carry.addmm_(d_gates, w_h)
            d_gates[:, 2 * size :] = d_n  # from here on as the product with W sees it
            d_w_x.addmm_(d_gates.t(), x[rows])
            d_b_x += d_gates.sum(0)
            torch.mm(d_gates, w_x, out=d_x[rows])
        return d_x, d_w_x, d_w_h, d_b_x, d_b_h, None, None


def unroll(gru: nn.GRU, x: Tensor, blocks: Sequence[int], scratch: Scratch) -> Tensor:
    """Run `gru` from a hidden state of zeros over the packed `x` (R, I); return all its hidden states (R, H).

    `blocks` are the rows of step 0, 1, 2, …, never rising; row i of a block goes on in row i of the next. The backward
    pass must come before the next call with the same `scratch`, whose memory it reads, or it raises `RuntimeError`.
    """
    hidden: Tensor = _Unroll.apply(x, *gru.parameters(), blocks, scratch)  # type: ignore[no-untyped-call]  # torch's
    return hidden
