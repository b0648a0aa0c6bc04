"""A GRU over packed sequences, with its own backward pass.

`torch.nn.GRU` unrolled on a CPU records a dozen small operations per time step, each with memory of its own, and pays
for padding or, on a `PackedSequence`, for cutting the batch at every step. Here the gates are computed in place in
memory that is kept from call to call, and the batch shrinks by taking shorter views. Of a time step is done only what
waits for the step before it, four or five operations; all else is done for as many steps at once as a processor's cache
holds. On a GPU cuDNN does all of this. `benchmarks/learner.py` has the figures.

Sizes: R rows (agents of all frames) in blocks, one block per time step; I inputs, H hidden units.
"""

import warnings
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.utils.rnn import PackedSequence

from components.policies.scratch import Scratch

_CACHED_ROWS = 768
"""Rows whose gates are worked on at once: with 64 hidden units, what the second-level cache of a core holds."""


def tanh_(x: Tensor) -> Tensor:
    """Take the hyperbolic tangent in place, as 2 sigmoid(2x) - 1: on a CPU torch's sigmoid is many times as fast."""
    return x.mul_(2.0).sigmoid_().mul_(2.0).sub_(1.0)


def _runs(blocks: Sequence[int]) -> Iterator[range]:
    """Yield the time steps in runs of at most `_CACHED_ROWS` rows, or of one step."""
    first, rows = 0, 0
    for t, block in enumerate(blocks):
        if t > first and rows + block > _CACHED_ROWS:
            yield range(first, t)
            first, rows = t, 0
        rows += block
    yield range(first, len(blocks))


class _Unroll(torch.autograd.Function):
    """r, z = sigmoid(x W + h U + b); g = h U_n + c_n; n = tanh(x W_n + b_n + r g); h' = n + z (h - n).

    The gated unit of Cho et al. (2014) in the form of cuDNN and torch: r acts after the product with U_n. In memory the
    columns are n, r, z, g, so that what is added to x W (n, r, z) and to h U (r, z, g) is in one piece each.
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
        goes_back: bool,
    ) -> Tensor:
        size, stops = w_h.shape[1], [0, *accumulate(blocks)]
        runs = list(_runs(blocks))
        # Of a pass that does not go back nothing is kept but the hidden states.
        kept = len(x) if goes_back else max(stops[run.stop] - stops[run.start] for run in runs)
        gates = scratch.take("gates", kept, 4 * size, x)
        hidden = x.new_empty(len(x), size) if goes_back else scratch.take("hidden", len(x), size, x)
        w_nrz = torch.cat([w_x[2 * size :], w_x[: 2 * size]])
        w_xt, w_ht = w_nrz.t(), w_h.t()
        bias = torch.cat([b_x[2 * size :], b_x[: 2 * size] + b_h[: 2 * size], b_h[2 * size :]])
        before = torch.zeros(blocks[0], size, dtype=x.dtype, device=x.device)
        for run in runs:
            start, stop = stops[run.start], stops[run.stop]
            cached = gates[start:stop] if goes_back else gates[: stop - start]
            cached.copy_(bias)
            cached[:, : 3 * size].addmm_(x[start:stop], w_xt)
            for t in run:
                now = cached[stops[t] - start : stops[t + 1] - start]
                n, rz, z, g = now[:, :size], now[:, size : 3 * size], now[:, 2 * size : 3 * size], now[:, 3 * size :]
                if t:
                    before = before[: blocks[t]]
                    now[:, size:].addmm_(before, w_ht)
                rz.sigmoid_()
                tanh_(n.addcmul_(rz[:, :size], g))
                before = torch.lerp(n, before, z, out=hidden[stops[t] : stops[t + 1]])
        ctx.save_for_backward(x, w_nrz, w_h, hidden)
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
        x, w_nrz, w_h, hidden = ctx.saved_tensors
        size = w_h.shape[1]
        d_x = scratch.take("d_x", *x.shape, x)
        d_w_nrz, d_w_h = torch.zeros_like(w_nrz), torch.zeros_like(w_h)
        d_bias = x.new_zeros(4 * size)
        d_h_kept, carry_kept = (scratch.take(name, blocks[0], size, x) for name in ("d_h", "carry"))
        carry = carry_kept[:0]  # what the next step says of the hidden state that it starts from
        for run in reversed(list(_runs(blocks))):
            start, stop = stops[run.start], stops[run.stop]
            d_gates = gates[start:stop]
            zs = _slopes(d_gates, hidden[start:stop], size, scratch)
            for t in reversed(run):
                block, at = blocks[t], stops[t] - start
                now, z, told = d_gates[at : at + block], zs[at : at + block], d_hidden[stops[t] : stops[t + 1]]
                d_h = d_h_kept[:block]
                went_on = len(carry)
                torch.add(told[:went_on], carry, out=d_h[:went_on])
                if went_on < block:
                    d_h[went_on:] = told[went_on:]
                now.view(block, 4, size).mul_(d_h.unsqueeze(1))
                if t:
                    carry = torch.mul(d_h, z, out=carry_kept[:block])
                    carry.addmm_(now[:, size:], w_h)
            d_nrz = d_gates[:, : 3 * size]
            d_w_nrz.addmm_(d_nrz.t(), x[start:stop])
            torch.mm(d_nrz, w_nrz, out=d_x[start:stop])
            d_bias += d_gates.sum(0)
            for t, after in _even(blocks, run):
                rows = stops[after] - stops[t]
                d_w_h.addmm_(gates[stops[t] : stops[after], size:].t(), hidden[stops[t - 1] : stops[t - 1] + rows])
        d_n, d_rz, d_g = d_bias[:size], d_bias[size : 3 * size], d_bias[3 * size :]
        d_w_x = torch.cat([d_w_nrz[size:], d_w_nrz[:size]])
        return d_x, d_w_x, d_w_h, torch.cat([d_rz, d_n]), torch.cat([d_rz, d_g]), None, None, None


def _slopes(gates: Tensor, hidden: Tensor, size: int, scratch: Scratch) -> Tensor:
    """Turn the columns n, r, z, g of `gates` into what a unit of d h' is worth to each before its non-linearity.

    (1 - z)(1 - n²) for n; r times that for g; g (1 - r) times this for r; (h - n) z (1 - z), or (h' - n)(1 - z), for z.
    Return a copy of z, which is what it is worth to h.
    """
    n, r, z, g = torch.split(gates, size, dim=1)
    kept, rest, slope = (scratch.take(name, len(gates), size, gates) for name in ("z", "1-z", "slope"))
    kept.copy_(z)
    torch.sub(1.0, z, out=rest)
    torch.sub(hidden, n, out=z).mul_(rest)
    torch.mul(n, n, out=slope)
    torch.addcmul(rest, rest, slope, value=-1.0, out=n)
    torch.mul(n, r, out=slope)
    g.mul_(slope)
    torch.addcmul(g, g, r, value=-1.0, out=r)
    g.copy_(slope)
    return kept


def _even(blocks: Sequence[int], run: range) -> Iterator[tuple[int, int]]:
    """Yield (first, behind the last) of the steps of `run` whose rows all go on, so that theirs before are in a row."""
    first = max(run.start, 1)
    for t in range(first + 1, run.stop):
        if blocks[t - 1] != blocks[t - 2]:
            yield first, t
            first = t
    if first < run.stop:
        yield first, run.stop


def unroll(gru: nn.GRU, x: Tensor, blocks: Sequence[int], scratch: Scratch) -> Tensor:
    """Run `gru` from a hidden state of zeros over the packed `x` (R, I); return all its hidden states (R, H).

    `blocks` are the rows of step 0, 1, 2, …, never rising; row i of a block goes on in row i of the next. Without
    gradients, what is returned lies in the memory of `scratch`, and is there until the next call with it. The backward
    pass must come before that too, and only once, or it raises `RuntimeError`.
    """
    if x.is_cuda:
        with warnings.catch_warnings():
            # Its weights lie in one tensor with all others, for the optimiser; that costs cuDNN a small copy.
            warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
            packed: Tensor = gru(PackedSequence(x, torch.tensor(blocks)))[0].data
        return packed
    hidden: Tensor = _Unroll.apply(  # type: ignore[no-untyped-call]  # torch's
        x, *gru.parameters(), blocks, scratch, torch.is_grad_enabled()
    )
    return hidden
