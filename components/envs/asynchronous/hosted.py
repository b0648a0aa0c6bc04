"""One copy of an environment in its process, and how its arrays are written into shared rows."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from math import isfinite, prod
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from components.envs.asynchronous.arrays import Fields, Rows
from components.envs.base import Env, TimedEnv


class Hosted(Protocol):
    """One copy of an environment."""

    @property
    def fields(self) -> Fields:
        """The rows that it reads, whose names begin with `actions`, and those that it writes."""

    about: dict[str, Any]
    """Further information for the owner, as plain values."""
    preload: bool
    """True if it is an `Env` that overrides `preload`."""

    def reset(self, rows: Rows, options: dict[str, Any]) -> dict[str, Any]:
        """Start an episode; return infos."""

    def step(self, rows: Rows) -> dict[str, Any] | None:
        """Make a step; return infos, or None if the episode was lost and another has begun."""

    def close(self) -> None:
        """Close the environment."""


class HostedTimed(Hosted, Protocol):
    """One copy of an environment whose steps are shown at a later time."""

    def begin(self, rows: Rows) -> float:
        """Make a step but write nothing yet; return the `time.monotonic` from which `finish` may be called."""

    def finish(self, rows: Rows) -> dict[str, Any] | None:
        """Write the rows of the step; return infos, or None if the episode was lost and another has begun."""


FLAGS = ("terminated", "truncated", "won")
"""The flags that an environment sets at each step, besides its fields."""


class HostedEnv:
    """One copy of an `Env`. It checks all that it writes, so that its owner need not.

    Raises:
        ValueError: the environment has several copies.
    """

    def __init__(self, env: Env) -> None:
        if env.n_envs != 1:
            raise ValueError(f"{env!r} has {env.n_envs} copies; a factory must make as many as it is told, 1")
        spec = env.spec
        self._env = env
        self.about = asdict(spec)
        self.preload = type(env).preload is not Env.preload
        self.fields = {name: (shape, dtype.str) for name, (shape, dtype) in spec.schema.items.items()}
        self.fields |= dict.fromkeys(FLAGS, ((), "|b1"))
        self._finite = {name for name, each in spec.schema.fields if each.dtype.startswith("float")}
        self._written: Rows = {}
        self._parts: list[_Part] = []

    def reset(self, rows: Rows, options: dict[str, Any]) -> dict[str, Any]:
        self._env.reset()
        self._show(rows)
        return {}

    def step(self, rows: Rows) -> dict[str, Any] | None:
        self._env.step(rows["actions"][None].copy())
        return self.finish(rows)

    def finish(self, rows: Rows) -> dict[str, Any] | None:
        """Write the results of the last step; return infos, or None if the episode was lost and another has begun."""
        lost = self._env.failed_copies()
        self._show(rows)
        return None if lost is not None and lost[0] else {}

    def close(self) -> None:
        self._env.close()

    def _show(self, rows: Rows) -> None:
        shown = self._env.fields()
        if rows is not self._written or any(part.array is not shown[part.name] for part in self._parts):
            self._look_anew(rows, shown)
        for part in self._parts:
            if part.valid is not None and not part.valid():
                raise ValueError(part.fault)
            part.row[...] = part.source
        for name in FLAGS:
            rows[name][...] = getattr(self._env, name)[0]

    def _look_anew(self, rows: Rows, shown: Mapping[str, NDArray[Any]]) -> None:
        """Cache the environment's arrays, because nearly all environments show the same arrays at every step."""
        self._parts = []
        for name, row in rows.items():
            if name == "actions" or name in FLAGS:
                continue
            array = shown[name]
            if array.shape[1:] != row.shape:
                raise ValueError(f"{name} has the shape {array.shape[1:]}, must be {row.shape}")
            source = array[0, ...]
            valid, fault = None, ""
            if name in self._finite:
                valid, fault = _all_finite(source), f"{name} is not finite"
            elif name == "available":
                valid, fault = _each_has_one(source), "an agent has no available action"
            self._parts.append(_Part(name, array, source, row, valid, fault))
        self._written = rows


class HostedTimedEnv(HostedEnv):
    """One copy of a `TimedEnv`.

    Raises:
        ValueError: the environment has several copies.
    """

    def __init__(self, env: TimedEnv) -> None:
        super().__init__(env)
        self._timed = env

    def begin(self, rows: Rows) -> float:
        """Make a step but write nothing yet; return the `time.monotonic` from which `finish` may be called."""
        return self._timed.begin_step(rows["actions"][None].copy())


class _Part(NamedTuple):
    """An array that an environment shows, and the row that it is copied to."""

    name: str
    array: NDArray[Any]  # (1, …)
    source: NDArray[Any]  # its only row
    row: NDArray[Any]
    valid: Callable[[], bool] | None  # whether the present values may be shown; None where all values may be
    fault: str  # what is wrong if they may not


# These run at every step, mostly on small arrays. Reducing an array of flags takes longer than comparing its bytes.


def _all_finite(source: NDArray[Any]) -> Callable[[], bool]:
    """Return a function that tells whether all present numbers of `source` are finite."""
    if source.ndim == 0:
        return lambda: isfinite(source)
    finite, expected = np.empty(source.shape, np.bool_), b"\1" * source.size

    def check() -> bool:
        np.isfinite(source, finite)
        return finite.tobytes() == expected

    return check


def _each_has_one(source: NDArray[np.bool_]) -> Callable[[], bool]:
    """Return a function that tells whether each row of `source` (…, U) has a true element now."""
    has_one, expected = np.empty(source.shape[:-1], np.bool_), b"\1" * prod(source.shape[:-1])

    def check() -> bool:
        np.logical_or.reduce(source, -1, out=has_one)
        return has_one.tobytes() == expected

    return check
