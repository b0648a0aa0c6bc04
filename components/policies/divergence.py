"""Divergence of two policies on the same inputs: Kullback-Leibler divergence, or share of different greedy choices.

Shapes: K inputs, A agents, U actions, D dimensions of a continuous action.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Outputs: TypeAlias = Mapping[str, NDArray[Any]]
"""Outputs that decide the actions of a policy. `logits` (K, A, U) of a discrete action; `logits/NAME` for each further
part of it that is drawn independently. `mean` and `log_std` (K, A, D) of a Gaussian. A policy that acts by values of
actions gives these values as logits: it is treated as a softmax of temperature 1."""
Measure: TypeAlias = Literal["kl", "greedy"]
"""`kl`: Σ_a p(a) log(p(a) / q(a)), in nats. `greedy`: 1 where the most probable actions differ, else 0."""


def packed(outputs: Outputs, available: NDArray[np.bool_] | None = None) -> dict[str, NDArray[Any]]:
    """Return outputs in the form of a digest: log-probabilities in float16, Gaussians in float32.

    Probabilities near 1 have logarithms near 0, where float16 is finest. An action that is not available has 0.

    Args:
        outputs: of a policy.
        available: (K, A, U), mask of available actions; None if all are. It applies to `logits`.

    Raises:
        ValueError: the outputs are neither logits nor a Gaussian, or not finite.
    """
    check_outputs(outputs)
    made: dict[str, NDArray[Any]] = {}
    for name, array in outputs.items():
        if name.startswith("logits"):
            mask = available if name == "logits" else None
            log_p = _log_softmax(np.asarray(array, np.float64), mask)
            log_p = log_p if mask is None else np.where(mask, log_p, 0.0)
            made[name] = np.maximum(log_p, np.finfo(np.float16).min).astype(np.float16)
        else:
            made[name] = np.asarray(array, np.float32)
    return made


def check_outputs(outputs: Outputs) -> None:
    """Raise `ValueError` unless these are logits, or the mean and the standard deviation of a Gaussian, all finite."""
    names = set(outputs)
    if names != {"mean", "log_std"} and not (names and all(n == "logits" or n.startswith("logits/") for n in names)):
        raise ValueError(f"outputs: expected logits, or mean and log_std, got {', '.join(sorted(names)) or 'nothing'}")
    for name, array in outputs.items():
        if np.isnan(array).any() or np.isposinf(array).any():
            raise ValueError(f"{name}: expected finite numbers, got {array[~np.isfinite(array)][0]}")


def divergences(
    own: Outputs, other: Outputs, *, available: NDArray[np.bool_] | None = None, measure: Measure = "kl"
) -> NDArray[np.float64]:
    """Return the divergence of `own` against `other` for each input and agent, (K, A), in float64.

    The KL divergence of independent parts and dimensions is the sum over them; `greedy` is 1 if any part differs. The
    order matters: `own` acts, and its probabilities are the weights.

    Args:
        own: outputs of the policy that acts, packed or not.
        other: outputs of the policy that it is compared with.
        available: (K, A, U), mask of available actions; None if all are. It applies to `logits`.
        measure: measure of the difference. `greedy` compares only discrete actions.

    Raises:
        ValueError: the outputs of the two differ in their names or shapes, or `measure` does not suit them.
    """
    shapes = {name: array.shape for name, array in own.items()}
    if shapes != (given := {name: array.shape for name, array in other.items()}):
        raise ValueError(f"the outputs of two policies cannot be compared: {shapes} and {given}")
    if "mean" in own:
        if measure != "kl":
            raise ValueError("continuous actions have no greedy choice to compare: use kl")
        return _gaussian_kl(own, other)
    parts = []
    for name in own:
        mask = available if name == "logits" else None
        p, q = (_log_softmax(np.asarray(each[name], np.float64), mask) for each in (own, other))
        if measure == "greedy":
            parts.append((p.argmax(-1) != q.argmax(-1)).astype(np.float64))
        else:
            with np.errstate(invalid="ignore"):  # -inf - -inf, where neither policy takes the action
                terms = np.where(np.isneginf(p), 0.0, np.exp(p) * (p - q))
            parts.append(terms.sum(-1))
    return np.asarray(np.maximum.reduce(parts) if measure == "greedy" else np.sum(parts, axis=0), np.float64)


def mean_divergence(
    own: Outputs,
    other: Outputs,
    *,
    available: NDArray[np.bool_] | None = None,
    alive: NDArray[np.bool_] | None = None,
    measure: Measure = "kl",
) -> float:
    """Return the mean of `divergences` over the inputs and agents that have a choice; 0 if none has.

    Args:
        own: as in `divergences`.
        other: as in `divergences`.
        available: as in `divergences`. An agent with one action or none has no choice.
        alive: (K, A), mask of living agents; None if all are alive.
        measure: as in `divergences`.

    Raises:
        ValueError: as `divergences`.
    """
    each = divergences(own, other, available=available, measure=measure)
    counts = np.ones(each.shape, np.bool_) if alive is None else alive.copy()
    if available is not None:
        counts &= available.sum(-1) > 1
    return float(each[counts].mean()) if counts.any() else 0.0


def _log_softmax(logits: NDArray[np.float64], available: NDArray[np.bool_] | None) -> NDArray[np.float64]:
    if available is not None:
        logits = np.where(available, logits, -np.inf)
    top = logits.max(-1, keepdims=True)
    shifted = logits - np.where(np.isneginf(top), 0.0, top)  # a row without any action stays -inf
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


def _gaussian_kl(own: Outputs, other: Outputs) -> NDArray[np.float64]:
    mean_p, log_p, mean_q, log_q = (
        np.asarray(each[name], np.float64) for each in (own, other) for name in ("mean", "log_std")
    )
    terms = log_q - log_p + (np.exp(2.0 * log_p) + (mean_p - mean_q) ** 2) / (2.0 * np.exp(2.0 * log_q)) - 0.5
    return np.asarray(terms.sum(-1))
