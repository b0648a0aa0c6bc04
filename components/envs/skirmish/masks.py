"""Replacement of unavailable actions, for callers that do not use action masks."""

import numpy as np
from numpy.typing import NDArray

from .battles import Battles
from .checks import are_available
from .kernel.constants import NO_OP, STOP


def possible(env: Battles, actions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Replace unavailable actions by *stop*, or *nothing* for dead agents; return the actions and where, (B, A).

    Raises:
        ValueError: the actions have another shape.
    """
    if actions.shape != env.available.shape[:2]:
        raise ValueError(f"actions are of shape {actions.shape}, must be {env.available.shape[:2]}")
    may = are_available(actions, env.available)
    idle = np.where(env.available[..., NO_OP], NO_OP, STOP)
    return np.where(may, actions, idle), ~may
