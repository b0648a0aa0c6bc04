"""A check of experience against the policy of its recorded version."""

import numpy as np

from components.experience import SchemaMismatch
from components.policies.base import EpisodeBatch, Policy

TOLERANCE = 1e-5
"""Largest difference of log-probabilities: with one row at a time or many, rounding may differ."""


def check_log_prob(policy: Policy, batch: EpisodeBatch, version: int, tolerance: float = TOLERANCE) -> int:
    """Compare the field `log_prob` with the policy, in segments whose steps are all of its version.

    Args:
        policy: the policy, with the parameters of `version`.
        batch: experience of any versions.
        version: version of the parameters.
        tolerance: largest difference, absolute; relative for log-probabilities beyond 1.

    Returns:
        The number of segments that were compared.

    Raises:
        SchemaMismatch: a log-probability differs. The text names the segment, the step and the agent.
        TypeError: the policy does not compute log-probabilities.
    """
    if batch.versions is None:
        return 0
    real = np.arange(batch.versions.shape[1]) < batch.lengths[:, None]
    own = ((batch.versions == version) | ~real).all(1)
    if not own.any():
        return 0
    said = policy.log_prob(batch.select(own))
    if said is None:
        raise TypeError(f"{policy!r} does not say log-probabilities: implement Policy.log_prob")
    given = batch["log_prob"][own]
    error = np.abs(given - said) / np.maximum(np.abs(said), 1.0)
    error = np.where(real[own].reshape(*real[own].shape, *[1] * (error.ndim - 2)), error, 0.0)
    if not (error <= tolerance).all():
        segment, step, *agent = np.unravel_index(np.argmax(np.nan_to_num(error, nan=np.inf)), error.shape)
        place = (segment, step, *agent)
        whose = f"segment {np.flatnonzero(own)[segment]}" + (f" of agent {agent[0]}" if agent else "")
        raise SchemaMismatch(
            f"log_prob: {given[place]:.6g} was carried for step {step} of {whose}, "
            f"and version {version} of the policy says {said[place]:.6g}"
        )
    return int(own.sum())
