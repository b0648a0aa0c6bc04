"""Registered Gymnasium environments by ID (extra `gymnasium`), in their vectorised form if they have one."""

from typing import Any

import gymnasium
from gymnasium.error import Error

from components.envs.adapted.gymnasium_copies import GymnasiumCopies
from components.envs.adapted.gymnasium_vector import vector_copies
from components.envs.base import Env
from orchestra import UsageError


def gymnasium_env(
    name: str, arguments: dict[str, Any], episode_limit: int | None = None, n_envs: int = 1, *, seed: int
) -> Env:
    """Make B copies of a registered environment.

    An environment that registers a vectorised form is made in that form, unless `vectorization_mode` is "sync".

    Args:
        name: its ID.
        arguments: of `gymnasium.make`, or of `gymnasium.make_vec`.
        episode_limit: steps after which an episode is cut; by default the registered number.
        n_envs: B.
        seed: of all copies.

    Raises:
        UsageError: there is no such environment, it cannot be made, or it cannot be adapted.
    """
    arguments = dict(arguments)
    mode = arguments.pop("vectorization_mode", None)
    if mode not in (None, "sync"):
        raise UsageError(f"--env-arg: vectorization_mode is {mode!r}, must be sync; --asynchronous makes processes")
    limit: dict[str, Any] = {} if episode_limit is None else {"max_episode_steps": episode_limit}
    try:
        if mode is None and _has_vectorised_form(name):
            vector = gymnasium.make_vec(name, n_envs, vectorization_mode="vector_entry_point", **limit, **arguments)
            return vector_copies(vector, seed=seed, episode_limit=episode_limit)
        return GymnasiumCopies(
            lambda: gymnasium.make(name, disable_env_checker=True, **limit, **arguments),
            n_envs,
            seed=seed,
            episode_limit=episode_limit,
        )
    except (Error, ImportError, TypeError) as error:
        raise UsageError(f"--env gymnasium:{name} cannot be made: {' '.join(str(error).split())}") from error


def _has_vectorised_form(name: str) -> bool:
    module, _, registered = name.rpartition(":")
    if module:
        __import__(module)
    spec = gymnasium.spec(registered)
    return spec.vector_entry_point is not None and not spec.additional_wrappers
