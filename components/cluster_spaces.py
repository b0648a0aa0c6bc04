"""The environments of a node of a ClusterEnv: a vector environment of Gymnasium that resets its copies one by one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestra import UsageError, import_file


def make_envs(env: Mapping[str, Any], n_envs: int) -> Any:
    """Return a vector environment in which a copy whose episode ends begins another in the same step.

    Args:
        env: `type`: "gymnasium", or "file" for a function of a file. `env_name`: an environment of Gymnasium, or
            `FILE.py:FUNCTION`, whose function returns a `gymnasium.Env`. `env_kwargs`: keywords of either.
            `vectorization_mode`: of Gymnasium, "sync" by default.
        n_envs: copies.

    Raises:
        UsageError: there is no such environment.
    """
    import gymnasium  # an extra
    from gymnasium.vector import AutoresetMode, SyncVectorEnv

    kind, name, options = env.get("type", "gymnasium"), str(env["env_name"]), dict(env.get("env_kwargs") or {})
    reset: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP}
    if kind == "file":
        file, colon, function = name.rpartition(":")
        make = getattr(import_file(Path(file), "environment"), function, None) if colon else None
        if make is None:
            raise UsageError(f"env_name: {name!r} must be FILE.py:FUNCTION, of a function in this file")
        return SyncVectorEnv([lambda: make(**options)] * n_envs, **reset)
    if kind != "gymnasium":
        raise UsageError(f"type: expected gymnasium or file, got {kind!r}")
    mode = env.get("vectorization_mode", "sync")
    try:
        return gymnasium.make_vec(name, num_envs=n_envs, vectorization_mode=mode, vector_kwargs=reset, **options)
    except gymnasium.error.Error as error:
        raise UsageError(f"env_name: {name!r}: {error}") from error
