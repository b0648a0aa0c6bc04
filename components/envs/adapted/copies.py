"""Common parts of adapted environments: arrays of their declared fields, seeds, and episode limits."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.envs.base import Env
from components.envs.skirmish.checks import are_available, not_available
from orchestra import UsageError


def seed_of(seed: int, copy: int) -> int:
    """Return the seed for the first `reset` of a copy. Later resets continue with the copy's generator."""
    return int(np.random.SeedSequence(seed, spawn_key=(copy,)).generate_state(1)[0]) >> 1


def limit_of(declared: int | None, given: int | None, whose: str) -> int:
    """Return the number of steps after which an episode is cut: the given one, or else the declared one.

    Raises:
        UsageError: there is neither.
    """
    limit = given or declared
    if limit is None:
        raise UsageError(f"{whose} does not say after how many steps it cuts an episode: give --episode-limit")
    return limit


class FieldEnv(Env):
    """An `Env` whose arrays are those of the fields in its spec."""

    def _allocate(self) -> None:
        spec, copies = self.spec, self.n_envs
        self._arrays: dict[str, NDArray[Any]] = {
            name: np.zeros((copies, *shape), dtype)
            for name, (shape, dtype) in spec.schema.items.items()
            if name != "actions"
        }
        for name in ("obs", "state", "available", "reward"):
            if name in self._arrays:
                setattr(self, name, self._arrays[name])
        if "available" in self._arrays:
            self.available[:] = True
        self._floats = [name for name, array in self._arrays.items() if array.dtype.kind == "f" and name != "state"]
        self.terminated, self.truncated, self.won = np.zeros((3, copies), np.bool_)
        self._over = np.ones(copies, np.bool_)  # (B,): no episode under way
        self._t = np.zeros(copies, np.int64)  # (B,): steps of the episodes under way

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.spec.name} x {self.n_envs}>"

    def fields(self) -> Mapping[str, NDArray[Any]]:
        return self._arrays

    def _check_finite(self) -> None:
        """Raise `ValueError`, with the name of the field, if a field is not finite."""
        for name in self._floats:
            array = self._arrays[name]
            if not np.isfinite(array).all():
                b = int(np.isfinite(array).reshape(self.n_envs, -1).all(1).argmin())
                raise ValueError(f"{name}: expected finite numbers, got {array[b]} in copy {b}")

    def _check_playing(self, copies: NDArray[np.int64]) -> None:
        over = self._over[copies]
        if over.any():
            raise ValueError(f"copy {copies[over.argmax()]} is over: reset it before stepping on")

    def _check_available(self, actions: NDArray[np.int64], copies: NDArray[np.int64]) -> None:
        """Raise `ValueError` for an action (n, A) that is not available."""
        may = are_available(actions, self.available[copies])
        if not may.all():
            i, agent = np.argwhere(~may)[0]
            allowed = self.available[copies[i], agent]
            raise not_available(f"copy {copies[i]}, agent {agent}: action {actions[i, agent]}", allowed)


def number(reward: Any) -> float:
    """Return a reward as a number.

    Raises:
        ValueError: it is not a number.
    """
    try:
        return float(reward)
    except (TypeError, ValueError) as error:
        raise ValueError(f"reward: expected a number: {error}") from error


def checked_mask(mask: Any, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return an action mask, after checking that each row has an available action.

    Raises:
        ValueError: it has another shape, or no action is available.
    """
    array = np.asarray(mask).astype(np.bool_)
    if array.shape != shape:
        raise ValueError(f"action_mask: expected shape {shape}, got {array.shape}")
    if not array.any(-1).all():
        raise ValueError("action_mask: no action is available")
    return array
