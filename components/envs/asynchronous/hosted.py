"""One copy of an environment in its process, and how its arrays are written into shared rows."""

from collections.abc import Mapping
from dataclasses import asdict
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
        for name, _, source, row in self._parts:
            if name in self._finite and not _all(np.isfinite(source), None):
                raise ValueError(f"{name} is not finite")
            if name == "available" and not _all(_any(source, -1), None):
                raise ValueError("an agent has no available action")
            row[...] = source
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
            self._parts.append(_Part(name, array, array[0, ...], row))
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


_any, _all = np.logical_or.reduce, np.logical_and.reduce  # array methods call these through a Python function
