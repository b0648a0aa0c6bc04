"""A GRU over packed sequences, with its own backward pass.

`torch.nn.GRU` unrolled on a CPU records a dozen small operations per time step, each with memory of its own, and pays
for padding or, on a `PackedSequence`, for cutting the batch at every step. Here the walk over the time steps is one
compiled loop (`kernel/gru.py`) that makes its products itself (`kernel/product.py`), a group of rows at a time that
stays in the cache until its gates are done, in memory that every call reuses. The batch shrinks by going less
far. On a GPU cuDNN does all of this. `benchmarks/learner.py` has the figures.

Sizes: R rows (agents of all frames) in blocks, one block per time step; C different inputs of size I; H hidden units.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding
from torch.nn.utils.rnn import PackedSequence

from components.policies import kernel
from components.policies.kernel.product import GROUP, ROWS, fill, fill_outer, panels_of, room
from components.policies.scratch import Scratch

_APART = 16
"""Columns between rows of 4H: were those a power of two bytes apart, few of one column would fit into a cache."""


def tanh_(x: Tensor) -> Tensor:
    """Take the hyperbolic tangent in place, as 2 sigmoid(2x) - 1: on a CPU torch's sigmoid is many times as fast."""
    return x.mul_(2.0).sigmoid_().mul_(2.0).sub_(1.0)


def _product(left: Tensor, right: Tensor, name: str, scratch: Scratch) -> Tensor:
    """Return `left` times `right`, in the memory of that name; there may be some columns of zeros behind."""
    panels = panels_of(right.numpy())
    out = scratch.take(name, (len(left) + ROWS, panels.shape[0] * panels.shape[2]), left.dtype)
    fill(left.numpy(), panels, out.numpy())
    return out[: len(left)]


class _Unroll(torch.autograd.Function):
    """r, z = sigmoid(x W + h U + b); g = h U_n + c_n; n = tanh(x W_n + b_n + r g); h' = n + z (h - n).

    The gated unit of Cho et al. (2014) in the form of cuDNN and torch: r acts after the product with U_n.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,  # (C, I)
        w_x: Tensor,  # (3H, I): rows of r, z, n
        w_h: Tensor,  # (3H, H)
        b_x: Tensor,  # (3H,)
        b_h: Tensor,  # (3H,)
        picks: Tensor,  # (R,)
        blocks: Sequence[int],
        asked: Sequence[int],
        scratch: Scratch,
        goes_back: bool,
    ) -> Tensor:
        size, rows = w_h.shape[1], sum(blocks)
        # Of a pass that does not go back nothing is kept but the hidden states.
        gates = scratch.take("gates", (rows if goes_back else GROUP, 4 * size + _APART), x.dtype)
        hidden = scratch.take("hidden", (rows, size), x.dtype)
        of_x = _product(x, w_x.t(), "of_x", scratch)
        bias = torch.cat([b_x[: 2 * size] + b_h[: 2 * size], b_x[2 * size :], b_h[2 * size :]])
        kernel.unroll(
            of_x.numpy(),
            picks.numpy(),
            panels_of(w_h.t().numpy()),
            bias.numpy(),
            np.asarray(blocks),
            np.asarray(asked),
            hidden.numpy(),
            gates.numpy(),
            goes_back,
            room(GROUP, 3 * size, bias.numpy().dtype),
        )
        ctx.save_for_backward(x, w_x, w_h, picks, hidden)
        scratch.passes += 1
        ctx.blocks, ctx.asked, ctx.scratch, ctx.gates, ctx.number = blocks, asked, scratch, gates, scratch.passes
        return hidden

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_hidden: Tensor) -> tuple[Tensor | None, ...]:
        blocks, asked, scratch, gates = ctx.blocks, ctx.asked, ctx.scratch, ctx.gates
        if scratch.passes != ctx.number:
            raise RuntimeError("another pass has overwritten what this backward pass needs: go back before going on")
        scratch.passes += 1  # this one writes over the gates
        x, w_x, w_h, picks, hidden = ctx.saved_tensors
        size = w_h.shape[1]
        d_of_x = scratch.take("d_of_x", (len(x), 3 * size), x.dtype).zero_()
        of_step, of_x, dtype = (3 * size, size), (3 * size, x.shape[1]), hidden.numpy().dtype
        d_w_h, d_w_x = (room(*shape, dtype) for shape in (of_step, of_x))
        beside = room(GROUP, max(x.shape[1], size), dtype)
        kernel.unroll_back(
            d_hidden.contiguous().numpy(),
            gates.numpy(),
            hidden.numpy(),
            panels_of(w_h.numpy()),
            np.asarray(blocks),
            np.asarray(asked),
            d_of_x.numpy(),
            picks.numpy(),
            room(blocks[0], size, dtype),
            beside,
            d_w_h,
        )
        fill_outer(d_of_x.numpy(), 3 * size, x.numpy(), beside, d_w_x)
        d_b_x = d_of_x.sum(0)
        d_b_h = torch.cat([d_b_x[: 2 * size], gates[:, 2 * size : 3 * size].sum(0)])
        d_x = _product(d_of_x, w_x, "d_x", scratch)[:, : x.shape[1]]
        weights = (torch.from_numpy(d[:rows, :columns]) for d, (rows, columns) in ((d_w_x, of_x), (d_w_h, of_step)))
        return d_x, *weights, d_b_x, d_b_h, None, None, None, None, None


def unroll(
    gru: nn.GRU, x: Tensor, picks: Tensor, blocks: Sequence[int], asked: Sequence[int], scratch: Scratch
) -> Tensor:
    """Run `gru` from a hidden state of zeros over the packed rows `x[picks]`; return all its hidden states (R, H).

    The result lies in the memory of `scratch` and is valid until the next call with it. The backward pass must
    come before that too, and only once, or it raises `RuntimeError`.

    Args:
        gru: one layer.
        x: (C, I), inputs.
        picks: (R,), which of them a row has.
        blocks: rows of step 0, 1, 2, …, never rising; row i of a block continues row i of the block before.
        asked: how many of them, from the first, are asked for: at least as many as go on. The hidden states of the
            others are zeros, but on a GPU, and no gradient may come from there.
        scratch: kept memory.
    """
    if x.is_cuda:
        return unrolled_by_torch(gru, x, picks, blocks)
    hidden: Tensor = _Unroll.apply(  # type: ignore[no-untyped-call]  # torch's
        x, *gru.parameters(), picks, blocks, asked, scratch, torch.is_grad_enabled()
    )
    return hidden


def unrolled_by_torch(gru: nn.GRU, x: Tensor, picks: Tensor, blocks: Sequence[int]) -> Tensor:
    """Do as `unroll`, by `torch.nn.GRU` itself, which on a GPU is cuDNN's."""
    with warnings.catch_warnings():
        # Its weights lie in one tensor with all others, for the optimiser; that costs cuDNN a small copy.
        warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
        packed: Tensor = gru(PackedSequence(embedding(picks, x), torch.tensor(blocks)))[0].data
    return packed
