"""Checks of arrays that a caller passes. B copies of an environment, A agents, U actions."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def check_mask(which: NDArray[Any], n_envs: int) -> None:
    """Raise `ValueError` unless `which` is a mask of shape (B,)."""
    if which.shape != (n_envs,) or which.dtype != np.bool_:
        raise ValueError(f"which is {which.dtype} {which.shape}, must be bool {(n_envs,)}")


def check_integers(actions: NDArray[Any], shape: tuple[int, ...], whose: str = "actions") -> None:
    """Raise `ValueError` unless `actions` are integers of this shape."""
    if actions.shape != shape or actions.dtype.kind not in "iu":
        raise ValueError(f"{whose} are {actions.dtype} {actions.shape}, must be integers {shape}")


def are_available(actions: NDArray[Any], available: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return whether each action (B, A), any integer, is one of the available ones (B, A, U)."""
    inside = (actions >= 0) & (actions < available.shape[-1])
    taken = np.take_along_axis(available, np.where(inside, actions, 0)[..., None], axis=-1)
    return np.asarray(inside & taken[..., 0], np.bool_)


def not_available(action: str, available: NDArray[np.bool_]) -> ValueError:
    """Return the error for an unavailable action of an agent with the mask `available` (U,)."""
    return ValueError(f"{action} is not available, of these one is: {np.flatnonzero(available).tolist()}")


def opponent_actions(actions: NDArray[Any], available: NDArray[np.bool_], over: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the actions (B, E) that an opponent chose, with 0 in the battles that are `over` (B,).

    Raises:
        ValueError: the actions have another shape or type, or one is not available (B, E, U); the message names it.
    """
    actions = np.asarray(actions)
    check_integers(actions, available.shape[:2], "the opponent's actions")
    wrong = np.argwhere(~are_available(actions, available) & ~over[:, None])
    if len(wrong):
        b, e = wrong[0]
        raise not_available(f"battle {b}, enemy {e}: the opponent's action {actions[b, e]}", available[b, e])
    return np.ascontiguousarray(np.where(over[:, None], 0, actions), np.int64)
