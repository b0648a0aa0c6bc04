"""Returns and advantages: TD(λ) in several dimensions, n-step returns, GAE and V-trace, on packed episodes.

Episodes lie back to back: N steps of E episodes, whose `lengths` (E,) add up to N. D is the dimension of the reward.
A recursion over time needs log2(T) passes over whole arrays and not T, where T is the longest episode: each pass
doubles the number of steps that are summed. Sums are computed in float64 and returned in the dtype of the reward.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from components.replay_buffers.invalid import InvalidExperience, check_finite

Floats: TypeAlias = NDArray[np.floating[Any]]

FIRST_TRACE = 32
"""Older steps that `extend_lambda_returns` updates at once at first; each further time they are twice as many."""


class NSteps(NamedTuple):
    """Results of `n_step_returns` for every step."""

    returns: Floats  # (N,): discounted sum of the rewards of up to n steps
    last: NDArray[np.int64]  # (N,): last step of that sum; the value of its next frame follows
    discount: Floats  # (N,): gamma to the power of the number of summed steps


class VTrace(NamedTuple):
    """Results of `v_trace` for every step."""

    targets: Floats  # (N,): v_s, on which the value is regressed
    advantages: Floats  # (N,): rho (r + gamma [λ v_{s+1} + (1 - λ) V_{s+1}] - V), for the policy gradient


def extend_lambda_returns(
    returns: Floats,
    reward: Floats,
    value: Floats,
    *,
    fresh: int,
    terminated: bool,
    discount: float | Floats,
    td_lambda: float,
    coefficients: float | Floats = 1.0,
    threshold: float = 1e-3,
) -> tuple[int, int]:
    """Update the λ-returns of one growing episode in place, after `fresh` steps were added to its end.

    They are q_t = r_t + gamma [λ q_{t+1} + (1 - λ) v_{t+1}], each dimension with its own gamma. The last step has q = r
    if the game ended there, and q = v if it did not: its reward counts once the next step is known. These are the
    returns of memoire. With `fresh` of T they are those of a whole episode.

    The recursion runs backwards through the fresh steps and then the older ones, until a return changes by
    Σ_j |c_j| |Δq_j| < `threshold`. That return is the last one written. So the cost depends on the fresh steps and the
    horizon, not on the length of the episode.

    Args:
        returns: (T, D), changed in place; its values for the fresh steps are ignored.
        reward: (T, D), floating.
        value: (T, D), floating.
        fresh: number of new steps at the end, in 1 … T.
        terminated: True if the game ended with step T - 1; otherwise q = v there.
        discount: gamma in [0, 1], one number or (D,).
        td_lambda: λ in [0, 1].
        coefficients: c, one number or (D,). Their sign does not count here, as a negative one would hide a change.
        threshold: at least 0; with 0 the recursion always reaches the beginning.

    Returns:
        The first step whose return was written, and the first whose priority must be recomputed: the step after it if
        the threshold stopped the recursion, as in memoire.

    Raises:
        InvalidExperience: an array has another shape or dtype or is not finite, or an argument is out of its range;
            `returns` is unchanged.
    """
    lengths = np.array([len(reward)])
    _check({"reward": reward, "value": value}, lengths, n_dims=2)
    _check_floats("returns", returns, reward.shape, finite=False)
    gammas = _per_dimension("discount", discount, reward.shape[1], unit=True)
    scale = np.abs(_per_dimension("coefficients", coefficients, reward.shape[1]))
    _check_unit("td_lambda", td_lambda)
    if not 1 <= fresh <= len(reward):
        raise InvalidExperience(f"fresh: expected 1 to {len(reward)}, the steps of the episode, got {fresh}")
    if not threshold >= 0.0:
        raise InvalidExperience(f"threshold: expected at least 0, got {threshold}")

    stop, block = len(reward), fresh
    while stop:
        start, is_fresh = max(stop - block, 0), stop == len(reward)
        addend, following = reward[start:stop].astype(np.float64), value[start + 1 : stop + 1]
        addend[: len(following)] += (1.0 - td_lambda) * gammas * following
        if is_fresh:
            addend[-1] = reward[-1] if terminated else value[-1]
        else:
            addend[-1] += td_lambda * gammas * returns[stop]
        factor = np.broadcast_to(gammas * td_lambda, addend.shape).copy()
        factor[-1] = 0.0
        traced = _scan_back(addend, factor, len(addend))
        settled = np.flatnonzero(np.abs(traced - returns[start:stop]) @ scale < threshold)
        if len(settled) and not is_fresh:
            start += int(settled[-1])
            returns[start:stop] = traced[settled[-1] :]
            return start, start + 1
        returns[start:stop] = traced
        stop, block = start, FIRST_TRACE if is_fresh else 2 * block
    return 0, 0


class AdvantageScale:
    """Computes priorities from advantages, relative to their running scale: P = (|A| / √(mean square / 2))^exponent.

    The mean square is a very slow running mean, so a replay memory has to save it.
    """

    RATE = 1e-8
    FLOOR = 1e-6

    def __init__(self, mean_square: float = 1.0) -> None:
        if not (np.isfinite(mean_square) and mean_square > 0):
            raise ValueError(f"mean_square: expected a finite number above 0, got {mean_square}")
        self.mean_square = mean_square
        """The running mean of A², at least `FLOOR`."""

    def priorities(
        self, returns: Floats, value: Floats, *, coefficients: float | Floats = 1.0, exponent: float
    ) -> NDArray[np.float32]:
        """Return the priority (N,) of every step, and update the mean.

        A = Σ_j c_j (q_j - v_j) is a signed sum, so dimensions may cancel. An `exponent` of 0 makes every priority 1.

        Args:
            returns: (N, D), floating.
            value: (N, D), floating.
            coefficients: c, one number or (D,).
            exponent: at least 0.

        Raises:
            InvalidExperience: a shape or dtype differs, a number is not finite, or `exponent` is below 0. The mean is
                unchanged.
        """
        _check({"returns": returns, "value": value}, np.array([len(returns)]), n_dims=2)
        mix = _per_dimension("coefficients", coefficients, returns.shape[1])
        if not (np.isfinite(exponent) and exponent >= 0.0):
            raise InvalidExperience(f"exponent: expected a finite number of at least 0, got {exponent}")
        advantage = (returns.astype(np.float64) - value) @ mix
        priorities = (np.abs(advantage) / np.sqrt(self.mean_square / 2.0)) ** exponent
        moved = self.mean_square + self.RATE * float((advantage**2 - self.mean_square).sum())
        self.mean_square = max(moved, self.FLOOR)
        return np.asarray(priorities, np.float32)

    def __repr__(self) -> str:
        return f"<AdvantageScale mean square {self.mean_square}>"


def n_step_returns(reward: Floats, lengths: NDArray[np.integer[Any]], *, n: int, gamma: float) -> NSteps:
    """Return Σ_{k<m} gamma^k r_{t+k} of every step, where m is n, or less if the episode ends before.

    To store n-step transitions, insert `returns` as the reward, and the next observation and done of step `last`.

    Args:
        reward: (N,), floating.
        lengths: (E,), integers of at least 1 that add up to N.
        n: at least 1.
        gamma: in [0, 1].

    Raises:
        InvalidExperience: an array has another shape or dtype or is not finite, or an argument is out of its range.
    """
    _check({"reward": reward}, lengths, n_dims=1)
    _check_unit("gamma", gamma)
    if n < 1:
        raise InvalidExperience(f"n: expected at least 1, got {n}")
    step = np.arange(len(reward))
    last = np.minimum(step + n - 1, np.repeat(_last_steps(lengths), lengths))
    returns = reward.astype(np.float64)
    for k in range(1, min(n, int(lengths.max()))):
        reached = np.flatnonzero(step + k <= last)
        returns[reached] += gamma**k * reward[reached + k]
    discount = np.asarray(gamma ** (last - step + 1.0), reward.dtype)
    return NSteps(returns.astype(reward.dtype), last, discount)


def gae(
    reward: Floats,
    value: Floats,
    value_tp1: Floats,
    lengths: NDArray[np.integer[Any]],
    *,
    gamma: float,
    td_lambda: float,
) -> Floats:
    """Return Σ_k (gamma λ)^k δ_{t+k} (N,), where δ = r + gamma v_{t+1} - v: the advantages of Schulman et al. (2016).

    Args:
        reward: (N,), floating.
        value: (N,) of the state each step starts from.
        value_tp1: (N,) of the state it arrives at: 0 if the game ended there.
        lengths: (E,), integers of at least 1 that add up to N.
        gamma: the discount, in [0, 1].
        td_lambda: λ in [0, 1].

    Raises:
        InvalidExperience: an array has another shape or dtype or is not finite, or an argument is out of its range.
    """
    _check({"reward": reward, "value": value, "value_tp1": value_tp1}, lengths, n_dims=1)
    _check_unit("gamma", gamma)
    _check_unit("td_lambda", td_lambda)
    delta = reward.astype(np.float64) + gamma * value_tp1 - value
    factor = np.full(len(reward), gamma * td_lambda)
    factor[_last_steps(lengths)] = 0.0
    return _scan_back(delta, factor, int(lengths.max())).astype(reward.dtype)


def v_trace(
    reward: Floats,
    value: Floats,
    value_tp1: Floats,
    log_ratio: Floats,
    lengths: NDArray[np.integer[Any]],
    *,
    gamma: float,
    td_lambda: float = 1.0,
    rho_max: float = 1.0,
    c_max: float = 1.0,
) -> VTrace:
    """Return V-trace targets and advantages of every step (Espeholt et al. 2018, §4.1 and remark 2).

    v_s = V_s + Σ_k gamma^k (Π c) rho δ, with rho = min(rho_max, π/μ) and c = λ min(c_max, π/μ). On policy, with both
    limits at least 1, the targets are λ-returns and the advantages those of `gae`. With λ = 1 both are the paper's.

    Args:
        reward: (N,), floating.
        value: (N,) of the state each step starts from.
        value_tp1: (N,) of the state it arrives at: 0 where the game ended there.
        log_ratio: (N,), log π(a) - log μ(a) of the target policy π and the acting policy μ.
        lengths: (E,), integers of at least 1 that add up to N.
        gamma: the discount, in [0, 1].
        td_lambda: λ in [0, 1].
        rho_max: above 0.
        c_max: above 0.

    Raises:
        InvalidExperience: an array has another shape or dtype or is not finite, or an argument is out of its range.
    """
    fields = {"reward": reward, "value": value, "value_tp1": value_tp1, "log_ratio": log_ratio}
    _check(fields, lengths, n_dims=1)
    _check_unit("gamma", gamma)
    _check_unit("td_lambda", td_lambda)
    for name, limit in (("rho_max", rho_max), ("c_max", c_max)):
        if not limit > 0:
            raise InvalidExperience(f"{name}: expected above 0, got {limit}")
    # Clipped before the exponential is taken: a ratio of e^1000 is no overflow but the limit.
    logs = log_ratio.astype(np.float64)
    rho, c = np.exp(np.minimum(logs, np.log(rho_max))), td_lambda * np.exp(np.minimum(logs, np.log(c_max)))
    last = _last_steps(lengths)
    factor = gamma * c
    factor[last] = 0.0
    delta = rho * (reward.astype(np.float64) + gamma * value_tp1 - value)
    targets = value + _scan_back(delta, factor, int(lengths.max()))
    after = np.append(targets[1:], 0.0)
    after[last] = value_tp1[last]
    advantages = rho * (reward + gamma * (td_lambda * after + (1.0 - td_lambda) * value_tp1) - value)
    return VTrace(targets.astype(reward.dtype), advantages.astype(reward.dtype))


def _scan_back(addend: Floats, factor: Floats, longest: int) -> Floats:
    """Return y_t = addend_t + factor_t y_{t+1}, where `factor` is 0 at every episode's end. Both are overwritten."""
    reach = 1
    while reach < longest:
        addend[:-reach] += factor[:-reach] * addend[reach:]
        factor[:-reach] *= factor[reach:].copy()
        reach *= 2
    return addend


def _last_steps(lengths: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    return np.cumsum(lengths, dtype=np.int64) - 1


def _check(fields: Mapping[str, Floats], lengths: NDArray[np.integer[Any]], *, n_dims: int) -> None:
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu":
        raise InvalidExperience(f"lengths: expected integers of shape (E,), got {lengths.dtype} {lengths.shape}")
    if len(lengths) == 0 or lengths.min() < 1:
        raise InvalidExperience(f"lengths: expected at least one episode of at least one step each, got {lengths}")
    name, first = next(iter(fields.items()))
    n_steps = int(lengths.sum())
    if first.ndim != n_dims or len(first) != n_steps:
        shape = f"({n_steps}, D)" if n_dims == 2 else f"({n_steps},)"
        raise InvalidExperience(f"{name}: expected shape {shape}, got {first.shape}")
    for name, array in fields.items():
        _check_floats(name, array, first.shape)


def _check_floats(name: str, array: Floats, shape: tuple[int, ...], *, finite: bool = True) -> None:
    if array.shape != shape or array.dtype.kind != "f":
        raise InvalidExperience(f"{name}: expected floats of shape {shape}, got {array.dtype} of shape {array.shape}")
    if finite:
        check_finite(name, array, "at step")


def _check_unit(name: str, number: float) -> None:
    if not 0.0 <= number <= 1.0:
        raise InvalidExperience(f"{name}: expected a number in [0, 1], got {number}")


def _per_dimension(name: str, numbers: float | Floats, n_dims: int, *, unit: bool = False) -> NDArray[np.float64]:
    array = np.asarray(numbers, np.float64)
    if array.shape not in ((), (n_dims,)):
        raise InvalidExperience(f"{name}: expected a number or shape ({n_dims},), one each, got shape {array.shape}")
    if not np.isfinite(array).all() or (unit and not ((array >= 0) & (array <= 1)).all()):
        raise InvalidExperience(f"{name}: expected {'numbers in [0, 1]' if unit else 'finite numbers'}, got {array}")
    return np.broadcast_to(array, (n_dims,))
