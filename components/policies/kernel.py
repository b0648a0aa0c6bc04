"""The loops of a gradient step that numba compiles: what torch would do in many passes over memory, done in one.

All take float32 and float64. The GRU makes its products of matrices itself (`product.py`); others are torch's. The
first call with either type compiles for some seconds, once on a machine; `compile_all` does so before anyone waits.
numba notices no change in `product.py`: who makes one changes this file too, or removes `__pycache__`. There is no
fast-math but for fused multiply-adds: NaN stays NaN.

Sizes: R rows, L living rows, P pairs of last action and agent, A agents, O observation size, H hidden units, N steps, M
units of the mixing layer.
"""

import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba.extending import overload
from numpy.typing import NDArray

from components.policies.product import GROUP, add, add_outer, fill, fill_outer, panels_of, room

Floats = NDArray[np.floating[Any]]
_F = TypeVar("_F", bound=Callable[..., Any])
_OPTIONS: Any = {"error_model": "numpy", "fastmath": {"contract"}}

# Of the types that mix with float32 and float64 without widening the former.
_ZERO, _ONE, _TWO = np.float32(0.0), np.float32(1.0), np.float32(2.0)


def _compiled(function: _F) -> _F:
    return cast("_F", numba.njit(cache=True, nogil=True, **_OPTIONS)(function))


def _compiled_sums(function: _F) -> _F:
    """Compile so that sums may be taken in any order, several terms at once."""
    options = _OPTIONS | {"fastmath": {"contract", "reassoc"}}
    return cast("_F", numba.njit(cache=True, nogil=True, **options)(function))


def exponential(x: Any) -> Any:
    """Return e to the `x`; of a float32, to 1.2e-7 of it where |x| < 87, and as at ±87 beyond."""
    return np.exp(x)


_LOW, _HIGH = np.float32(-87.0), np.float32(87.0)
_ROUNDS = np.float32(1.5 * 2.0**23)  # added, it leaves the integer part in the last bits
_PER_LN_2 = np.float32(1.0 / math.log(2.0))
_LN_2_HEAD, _LN_2_TAIL = np.float32(0.693359375), np.float32(-2.12194440e-4)
# e^r = 1 + r + r² (…) for |r| <= ln(2) / 2: Moshier's coefficients, of the Cephes library's expf.
_C0, _C1, _C2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
_C3, _C4, _C5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
_MANTISSA = np.int32(23)


@overload(exponential, jit_options=_OPTIONS)
def _exponential(x: Any) -> Callable[[Any], Any]:
    def of_double(x: Any) -> Any:
        return math.exp(x)

    def of_single(x: Any) -> Any:
        # Nothing here calls the C library or branches, so the compiler does many at once. NaN passes max and min.
        x = max(x, _LOW)
        x = min(x, _HIGH)
        shifted = x * _PER_LN_2 + _ROUNDS
        k = shifted - _ROUNDS
        r = x - k * _LN_2_HEAD - k * _LN_2_TAIL
        p = ((((_C0 * r + _C1) * r + _C2) * r + _C3) * r + _C4) * r + _C5
        p = p * (r * r) + r + _ONE
        # Times 2^k: k is added to the exponent.
        power = np.float32(shifted).view(np.int32) << _MANTISSA
        return np.int32(np.float32(p).view(np.int32) + power).view(np.float32)

    return of_single if x == numba.types.float32 else of_double


@_compiled
def _sigmoid(x: Any) -> Any:
    return _ONE / (_ONE + exponential(-x))


@_compiled
def collect(
    padded: Floats,
    frames: NDArray[np.int64],
    blocks: NDArray[np.int64],
    asked: NDArray[np.int64],
    last_actions: NDArray[np.int64],
    n_pairs: int,
    obs: Floats,
    pairs: NDArray[np.int64],
    picks: NDArray[np.int64],
) -> int:
    """Gather the observations that are not all zeros, and say of every row where its input is; return how many, L.

    Args:
        padded: (…, A, O), frames of a batch.
        frames: (F,), which of them, in packed order.
        blocks: (T,), frames at time 0, 1, 2, …
        asked: (T,), how many of them, from the first, are looked at; the others pass for frames that see nothing.
        last_actions: (F * A,), -1 for none.
        n_pairs: P.
        obs: (at least L, O), filled.
        pairs: (at least L,), filled with (last action + 1) * A + agent of each.
        picks: (F * A,), filled: P + l for the l-th living row, and the pair for any other.
    """
    n_agents, size = padded.shape[1], padded.shape[2]
    living = row = 0
    for t in range(len(blocks)):
        for i in range(blocks[t] * n_agents):
            agent = i % n_agents
            pair = (last_actions[row] + 1) * n_agents + agent
            picks[row] = pair
            if i < asked[t] * n_agents:
                seen = padded[frames[row // n_agents], agent]
                for j in range(size):
                    if seen[j] != _ZERO:
                        kept = obs[living]
                        for k in range(size):
                            kept[k] = seen[k]
                        pairs[living] = pair
                        picks[row] = n_pairs + living
                        living += 1
                        break
            row += 1
    return living


@_compiled
def rectify(x: Floats, table: Floats, pairs: NDArray[np.int64]) -> None:
    """Make `x` (P + L, H) relu of `table` (P, H) and, below it, of what is there and what `pairs` (L,) pick from it."""
    n_pairs, size = table.shape
    for i in range(n_pairs):
        out, picked = x[i], table[i]
        for j in range(size):
            out[j] = max(picked[j], _ZERO)
    for i in range(len(pairs)):
        out, picked = x[n_pairs + i], table[pairs[i]]
        for j in range(size):
            total = out[j] + picked[j]
            out[j] = max(total, _ZERO)


@_compiled
def rectify_back(x: Floats, pairs: NDArray[np.int64], d_x: Floats, d_sum: Floats, d_table: Floats) -> None:
    """Fill `d_sum` (L, H) and `d_table` (P, H) with the gradients of what `rectify` added up."""
    n_pairs, size = d_table.shape
    for i in range(n_pairs):
        out, value, slope = d_table[i], x[i], d_x[i]
        for j in range(size):
            out[j] = slope[j] if value[j] > _ZERO else _ZERO
    for i in range(len(pairs)):
        out, value, slope, total = d_sum[i], x[n_pairs + i], d_x[n_pairs + i], d_table[pairs[i]]
        for j in range(size):
            passed = slope[j] if value[j] > _ZERO else _ZERO
            out[j] = passed
            total[j] += passed


@_compiled
def unroll(
    of_x: Floats,
    picks: NDArray[np.int64],
    panels: Floats,
    bias: Floats,
    blocks: NDArray[np.int64],
    asked: NDArray[np.int64],
    hidden: Floats,
    gates: Floats,
    keeps: bool,
    of_h: Floats,
) -> None:
    """Run a GRU: r, z = sigmoid(x + h + b); g = h + b; n = tanh(x + b + r g); h' = n + z (h - n).

    Args:
        of_x: (C, 3H), products of the inputs with the weights of r, z, n.
        picks: (R,), the row of `of_x` of every row.
        panels: of the weights (H, 3H) of r, z, g that the hidden states are multiplied with.
        bias: (4H,), of r, z, n, g.
        blocks: (T,), rows of step 0, 1, 2, …
        asked: (T,), how many of them, from the first, are asked for; the others' hidden states are made zeros.
        hidden: (R, H), filled.
        gates: (R, at least 4H), filled with r, z, g, n; unless `keeps`, (GROUP, at least 4H), overwritten by each
            group.
        keeps: whether the gates are wanted.
        of_h: `room` for the products of a GROUP.
    """
    size = hidden.shape[1]
    none = np.zeros_like(hidden[0])
    start = before = 0
    for t in range(len(blocks)):
        for first in range(0, asked[t], GROUP):
            rows = min(GROUP, asked[t] - first)
            of_h[:] = _ZERO
            if t > 0:
                add(hidden, before + first, rows, panels, of_h, 0)
            for i in range(rows):
                row = start + first + i
                x, h, b = of_x[picks[row]], of_h[i], none if t == 0 else hidden[before + first + i]
                out, kept = hidden[row], gates[row if keeps else i]
                for j in range(size):
                    r = _sigmoid(x[j] + h[j] + bias[j])
                    z = _sigmoid(x[size + j] + h[size + j] + bias[size + j])
                    g = h[2 * size + j] + bias[3 * size + j]
                    n = _TWO * _sigmoid(_TWO * (x[2 * size + j] + bias[2 * size + j] + r * g)) - _ONE
                    out[j] = n + z * (b[j] - n)
                    kept[j] = r
                    kept[size + j] = z
                    kept[2 * size + j] = g
                    kept[3 * size + j] = n
        hidden[start + asked[t] : start + blocks[t]] = _ZERO
        before = start
        start += blocks[t]


@_compiled
def unroll_back(
    d_hidden: Floats,
    gates: Floats,
    hidden: Floats,
    panels: Floats,
    blocks: NDArray[np.int64],
    asked: NDArray[np.int64],
    d_of_x: Floats,
    picks: NDArray[np.int64],
    carry: Floats,
    beside: Floats,
    d_w_h: Floats,
) -> None:
    """Go back through `unroll`.

    Args:
        d_hidden: (R, H), what is said of the hidden states from elsewhere.
        gates: (R, at least 4H), r, z, g, n; the first three are overwritten with their gradients before the
            non-linearity.
        hidden: (R, H).
        panels: of the weights (3H, H) of r, z, g.
        blocks: (T,), rows of step 0, 1, 2, …
        asked: (T,), how many of them, from the first, were asked for; the gates of the others are made zeros.
        d_of_x: (C, 3H), to whose rows the gradients of r, z, n before their non-linearity are added.
        picks: (R,), the row of `d_of_x` of every row.
        carry: `room` for the rows of the first step: what a step says of the hidden states before it.
        beside: `room` for a GROUP of hidden states.
        d_w_h: (3H, H) in `room`, to which the gradient of the weights is added.
    """
    size = hidden.shape[1]
    none = np.zeros_like(hidden[0])
    start = len(hidden)
    went_on = 0
    for t in range(len(blocks) - 1, -1, -1):
        start -= blocks[t]
        before = start - blocks[max(t - 1, 0)]
        gates[start + asked[t] : start + blocks[t]] = _ZERO
        for first in range(0, asked[t], GROUP):
            rows = min(GROUP, asked[t] - first)
            for i in range(rows):
                row = start + first + i
                told, c, b, kept = (
                    d_hidden[row],
                    carry[first + i],
                    none if t == 0 else hidden[before + first + i],
                    gates[row],
                )
                d_x = d_of_x[picks[row]]
                if first + i >= went_on:
                    for j in range(size):
                        c[j] = _ZERO
                for j in range(size):
                    r, z, g, n, h = kept[j], kept[size + j], kept[2 * size + j], kept[3 * size + j], b[j]
                    d_h = told[j] + c[j]
                    d_n = d_h * (_ONE - z) * (_ONE - n * n)
                    d_r = d_n * g * r * (_ONE - r)
                    d_z = d_h * (h - n) * z * (_ONE - z)
                    c[j] = d_h * z
                    kept[j] = d_r
                    kept[size + j] = d_z
                    kept[2 * size + j] = d_n * r
                    d_x[j] += d_r
                    d_x[size + j] += d_z
                    d_x[2 * size + j] += d_n
            if t > 0:
                add_outer(gates, start + first, 3 * size, hidden, before + first, rows, beside, d_w_h)
                add(gates, start + first, rows, panels, carry, first)
        went_on = asked[t]


@_compiled
def say(hidden: Floats, panels: Floats, bias: Floats, sums: Floats, q: Floats) -> None:
    """Fill `q` (R, U) with what the last layer makes of `hidden` (R, H).

    Args:
        hidden: (R, H).
        panels: of its weights (H, U).
        bias: (U,).
        sums: `room` for the products of a GROUP.
        q: (R, U), filled.
    """
    for start in range(0, len(hidden), GROUP):
        rows = min(GROUP, len(hidden) - start)
        sums[:] = _ZERO
        add(hidden, start, rows, panels, sums, 0)
        for i in range(rows):
            said, out = sums[i], q[start + i]
            for j in range(len(bias)):
                out[j] = said[j] + bias[j]


@_compiled
def say_back(d_q: Floats, hidden: Floats, w: Floats, d_hidden: Floats, d_w: Floats, d_b: Floats) -> None:
    """Go back through `say`: fill `d_hidden` (R, H), and add to `d_w` (U, H) and `d_b` (U,).

    Of most rows of `d_q` (R, U) one element is not zero, that of the action taken: a product of matrices would do U
    times the arithmetic.
    """
    size = hidden.shape[1]
    for i in range(len(d_q)):
        told, out, unit = d_q[i], d_hidden[i], hidden[i]
        out[:] = _ZERO
        for u in range(len(d_b)):
            d = told[u]
            if d != _ZERO:
                weights, total = w[u], d_w[u]
                for j in range(size):
                    out[j] += d * weights[j]
                    total[j] += d * unit[j]
                d_b[u] += d


@_compiled_sums
def mix(q: Floats, first: Floats, w_1: Floats, w_2: Floats, v: Floats, mixed: Floats, total: Floats) -> None:
    """Mix as `MonotonicMixer` does: total = |w_2| · ELU(|W_1| q + b_1) + v · relu(for v).

    Args:
        q: (N, A).
        first: (N, …, M, M), what the state's first layer says, b_1 last and what v is made of before it.
        w_1: (N, A * M).
        w_2: (N, M).
        v: (M,).
        mixed: (N, M), filled with the ELU.
        total: (N, 1), filled.
    """
    n_agents, embed = q.shape[1], w_2.shape[1]
    at_b = first.shape[1] - embed
    at_v = at_b - embed
    for i in range(len(q)):
        said, weights, last, out = first[i], w_1[i], w_2[i], mixed[i]
        for j in range(embed):
            out[j] = said[at_b + j]
        for a in range(n_agents):
            for j in range(embed):
                out[j] += abs(weights[a * embed + j]) * q[i, a]
        for j in range(embed):
            below = exponential(out[j]) - _ONE
            out[j] = out[j] if out[j] > _ZERO else below
        summed = _ZERO * v[0]
        for j in range(embed):
            summed += abs(last[j]) * out[j] + said[at_v + j] * v[j]
        total[i, 0] = summed


@_compiled
def _sign(x: Any) -> Any:
    return _ONE if x > _ZERO else (-_ONE if x < _ZERO else _ZERO)


@_compiled_sums
def mix_back(
    d_total: Floats,
    q: Floats,
    first: Floats,
    w_1: Floats,
    w_2: Floats,
    v: Floats,
    mixed: Floats,
    d_q: Floats,
    d_first: Floats,
    d_w_1: Floats,
    d_w_2: Floats,
    d_v: Floats,
) -> None:
    """Go back through `mix`: fill `d_q`, `d_w_1`, `d_w_2` and the last 2 M columns of `d_first`, and add to `d_v`."""
    n_agents, embed = q.shape[1], w_2.shape[1]
    at_b = first.shape[1] - embed
    at_v = at_b - embed
    for i in range(len(q)):
        d = d_total[i, 0]
        said, weights, last, out = first[i], w_1[i], w_2[i], mixed[i]
        d_said, d_weights, d_last = d_first[i], d_w_1[i], d_w_2[i]
        for j in range(embed):
            d_last[j] = d * out[j] * _sign(last[j])
        for j in range(embed):
            slope = _ONE if out[j] > _ZERO else out[j] + _ONE
            d_said[at_b + j] = d * abs(last[j]) * slope
        for a in range(n_agents):
            summed = _ZERO * d
            for j in range(embed):
                passed, weight = d_said[at_b + j], weights[a * embed + j]
                summed += passed * abs(weight)
                d_weights[a * embed + j] = passed * q[i, a] * _sign(weight)
            d_q[i, a] = summed
        for j in range(embed):
            d_v[j] += d * said[at_v + j]
            d_said[at_v + j] = d * v[j] if said[at_v + j] > _ZERO else _ZERO


def compile_all(dtype: np.dtype[np.floating[Any]]) -> None:
    """Compile everything for arrays of that type, or load it if that has been done on this machine."""
    one, four, index = np.zeros((1, 1), dtype), np.zeros((1, 4), dtype), np.zeros(1, np.int64)
    three, padded = np.zeros((1, 3), dtype), np.zeros((1, 1, 1), np.float32)
    padded.flags.writeable = False
    collect(padded, index, index + 1, index + 1, index - 1, 1, np.zeros((1, 1), np.float32), index.copy(), index.copy())
    rectify(np.zeros((2, 1), dtype), one, index)
    rectify_back(np.zeros((2, 1), dtype), index, np.zeros((2, 1), dtype), one, one.copy())
    panels, sums = panels_of(np.zeros((1, 3), dtype)), room(GROUP, 3, dtype)
    fill(one, panels, sums)
    unroll(three, index, panels, four[0], index + 1, index + 1, one, four, True, sums)
    panels, (carry, beside, d_w) = panels_of(np.zeros((3, 1), dtype)), (room(rows, 1, dtype) for rows in (1, GROUP, 3))
    unroll_back(one, four, one.copy(), panels, index + 1, index + 1, three, index, carry, beside, d_w)
    fill_outer(three, 3, one, beside, d_w)
    say(one, panels_of(one), one[0], room(GROUP, 1, dtype), one.copy())
    say_back(one, one.copy(), one.copy(), one.copy(), one.copy(), one[0].copy())
    mix(one, three, one, one, one[0], one.copy(), one.copy())
    mix_back(one, one, three, one, one, one[0], one, one.copy(), three.copy(), one.copy(), one.copy(), one[0].copy())
