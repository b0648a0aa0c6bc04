"""A GRU over packed sequences, with its own backward pass.

`torch.nn.GRU` unrolled on a CPU records a dozen small operations per time step, each with memory of its own, and pays
for padding or, on a `PackedSequence`, for cutting the batch at every step. Here a time step is one product of matrices
and one compiled loop over its rows (`kernel.py`), in memory that is kept from call to call; the batch shrinks by taking
shorter views. All that waits for no step before it is done for many steps at once. On a GPU cuDNN does all of this.
`benchmarks/learner.py` has the figures.

Sizes: R rows (agents of all frames) in blocks, one block per time step; C different inputs of size I; H hidden units.
"""

import warnings
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding
from torch.nn.utils.rnn import PackedSequence

from components.policies import kernel
from components.policies.scratch import Scratch

_CACHED_ROWS = 768
"""Rows that are multiplied at once: with 64 hidden units, what the second-level cache of a core holds."""


def tanh_(x: Tensor) -> Tensor:
    """Take the hyperbolic tangent in place, as 2 sigmoid(2x) - 1: on a CPU torch's sigmoid is many times as fast."""
    return x.mul_(2.0).sigmoid_().mul_(2.0).sub_(1.0)


def chunks(start: int, stop: int) -> Iterator[slice]:
    """Cut the rows from `start` to `stop` into even pieces that a cache holds."""
    pieces = max(1, round((stop - start) / _CACHED_ROWS))
    bounds = [start + (stop - start) * i // pieces for i in range(pieces + 1)]
    return map(slice, bounds, bounds[1:])


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
        scratch: Scratch,
        goes_back: bool,
    ) -> Tensor:
        size, stops = w_h.shape[1], [0, *accumulate(blocks)]
        # Of a pass that does not go back nothing is kept but the hidden states.
        gates = scratch.take("gates", stops[-1] if goes_back else blocks[0], 4 * size, x)
        hidden = scratch.take("hidden", stops[-1], size, x)
        of_x = scratch.take("of_x", len(x), 3 * size, x)
        w_xt, w_ht = w_x.t(), w_h.t()
        for rows in chunks(0, len(x)):
            torch.mm(x[rows], w_xt, out=of_x[rows])
        of_h = scratch.take("of_h", blocks[0], 3 * size, x).zero_()
        bias = torch.cat([b_x[: 2 * size] + b_h[: 2 * size], b_x[2 * size :], b_h[2 * size :]])
        inputs = of_x.numpy(), picks.numpy(), of_h.numpy(), bias.numpy()
        outputs = hidden.numpy(), gates.numpy()
        before, before_start = x.new_zeros(blocks[0], size).numpy(), 0
        of_steps = torch.split(hidden, list(blocks))
        for t, (start, block) in enumerate(zip(stops, blocks, strict=False)):
            if t:
                before, before_start = outputs[0], stops[t - 1]
                if block < len(of_h):
                    of_h = of_h[:block]
                was = of_steps[t - 1]
                torch.mm(was if block == len(was) else was[:block], w_ht, out=of_h)
            kernel.step(*inputs, before, *outputs, start, block, before_start, start if goes_back else 0)
        ctx.save_for_backward(x, w_x, w_h, picks, hidden)
        scratch.passes += 1
        ctx.blocks, ctx.stops, ctx.scratch, ctx.gates, ctx.number = blocks, stops, scratch, gates, scratch.passes
        return hidden

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_hidden: Tensor) -> tuple[Tensor | None, ...]:
        blocks, stops, scratch, gates = ctx.blocks, ctx.stops, ctx.scratch, ctx.gates
        if scratch.passes != ctx.number:
            raise RuntimeError("another pass has overwritten what this backward pass needs: go back before going on")
        scratch.passes += 1  # this one writes over the gates
        x, w_x, w_h, picks, hidden = ctx.saved_tensors
        size = w_h.shape[1]
        d_of_x = scratch.take("d_of_x", len(x), 3 * size, x).zero_()
        d_of_h, hidden_before = gates[:, : 3 * size], gates[:, 3 * size :]  # once a step has gone back
        carry = scratch.take("carry", blocks[0], size, x)
        zeros = x.new_zeros(blocks[0], size)
        back = d_hidden.contiguous().numpy(), carry.numpy()
        states, kept = (gates.numpy(), hidden.numpy()), (d_of_x.numpy(), picks.numpy())
        of_steps = torch.split(d_of_h, list(blocks))
        went_on = 0
        for t in range(len(blocks) - 1, 0, -1):
            block = blocks[t]
            kernel.step_back(*back, went_on, *states, *kept, stops[t], block, stops[t - 1])
            (carry if block == len(carry) else carry[:block]).addmm_(of_steps[t], w_h)
            went_on = block
        kernel.step_back(*back, went_on, states[0], zeros.numpy(), *kept, 0, blocks[0], 0)
        d_x = scratch.take("d_x", *x.shape, x)
        for rows in chunks(0, len(x)):
            torch.mm(d_of_x[rows], w_x, out=d_x[rows])
        d_w_x, d_w_h = d_of_x.t() @ x, d_of_h[blocks[0] :].t() @ hidden_before[blocks[0] :]
        d_b_x = d_of_x.sum(0)
        d_b_h = torch.cat([d_b_x[: 2 * size], d_of_h[:, 2 * size :].sum(0)])
        return d_x, d_w_x, d_w_h, d_b_x, d_b_h, None, None, None, None


def unroll(gru: nn.GRU, x: Tensor, picks: Tensor, blocks: Sequence[int], scratch: Scratch) -> Tensor:
    """Run `gru` from a hidden state of zeros over the packed rows `x[picks]`; return all its hidden states (R, H).

    What is returned lies in the memory of `scratch`, and is there until the next call with it. The backward pass must
    come before that too, and only once, or it raises `RuntimeError`.

    Args:
        gru: one layer.
        x: (C, I), inputs.
        picks: (R,), which of them a row has.
        blocks: rows of step 0, 1, 2, …, never rising; row i of a block goes on in row i of the next.
        scratch: kept memory.
    """
    if x.is_cuda:
        return unrolled_by_torch(gru, x, picks, blocks)
    hidden: Tensor = _Unroll.apply(  # type: ignore[no-untyped-call]  # torch's
        x, *gru.parameters(), picks, blocks, scratch, torch.is_grad_enabled()
    )
    return hidden


def unrolled_by_torch(gru: nn.GRU, x: Tensor, picks: Tensor, blocks: Sequence[int]) -> Tensor:
    """Do as `unroll`, by `torch.nn.GRU` itself, which on a GPU is cuDNN's."""
    with warnings.catch_warnings():
        # Its weights lie in one tensor with all others, for the optimiser; that costs cuDNN a small copy.
        warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
        packed: Tensor = gru(PackedSequence(embedding(picks, x), torch.tensor(blocks)))[0].data
    return packed
