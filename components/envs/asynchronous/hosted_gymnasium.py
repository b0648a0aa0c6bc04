"""A Gymnasium environment hosted in a process, with its spaces as rows of arrays."""

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from components.envs.asynchronous.arrays import Fields, Rows

OBS, ACTIONS = "obs", "actions"


def leaves(space: spaces.Space[Any], name: str) -> Iterator[tuple[str, spaces.Space[Any]]]:
    """Yield the parts of a space that are one array each, with the names of their rows.

    Raises:
        ValueError: a part has no fixed size.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for key, part in _parts(space):
            yield from leaves(part, f"{name}/{key}")
    elif isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        yield name, space
    else:
        raise ValueError(
            f"{name} is a {space}: it must be a Box, Discrete, MultiDiscrete or MultiBinary, or a Dict or Tuple of them"
        )


def fields_of(observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> Fields:
    """Return the rows of an environment with these spaces."""
    parts = [*leaves(observation_space, OBS), *leaves(action_space, ACTIONS)]
    rows = {name: (tuple(space.shape or ()), np.dtype(space.dtype).str) for name, space in parts}
    return {**rows, "reward": ((), "<f8"), "terminated": ((), "|b1"), "truncated": ((), "|b1")}


def write(space: spaces.Space[Any], value: Any, rows: Rows, name: str) -> None:
    """Write a value of the space, or a batch of them, into rows."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for key, part in _parts(space):
            write(part, value[key], rows, f"{name}/{key}")
        return
    array = np.asarray(value)
    if array.shape != rows[name].shape:
        raise ValueError(f"{name} has the shape {array.shape}, must be {rows[name].shape}")
    rows[name][...] = array


def read(space: spaces.Space[Any], rows: Rows, name: str) -> Any:
    """Return copies of the rows in the structure of the space; the row of a Discrete becomes a number."""
    if isinstance(space, spaces.Dict):
        return {key: read(part, rows, f"{name}/{key}") for key, part in _parts(space)}
    if isinstance(space, spaces.Tuple):
        return tuple(read(part, rows, f"{name}/{key}") for key, part in _parts(space))
    array = rows[name].copy()
    return array[()] if array.ndim == 0 else array


def _parts(space: Any) -> Any:
    return space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)


class HostedGymnasium:
    """One copy of a Gymnasium environment.

    Raises:
        ValueError: a space has no fixed size.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self._env = env
        self.about: dict[str, Any] = {}
        self.preload = False
        self.fields = fields_of(env.observation_space, env.action_space)

    def reset(self, rows: Rows, options: dict[str, Any]) -> dict[str, Any]:
        obs, infos = self._env.reset(**options)
        write(self._env.observation_space, obs, rows, OBS)
        for name, nothing in (("reward", 0.0), ("terminated", False), ("truncated", False)):
            rows[name][...] = nothing
        return infos

    def step(self, rows: Rows) -> dict[str, Any] | None:
        obs, reward, terminated, truncated, infos = self._env.step(read(self._env.action_space, rows, ACTIONS))
        write(self._env.observation_space, obs, rows, OBS)
        rows["reward"][...], rows["terminated"][...], rows["truncated"][...] = reward, terminated, truncated
        return infos

    def close(self) -> None:
        self._env.close()
