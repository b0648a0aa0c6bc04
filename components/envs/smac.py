"""The real StarCraft II, through the StarCraft challenge (oxwhirl/smac), if both are installed."""

from functools import partial
from typing import Any

from components.envs.asynchronous.env import AsyncEnv
from components.envs.smac_game import SmacGame


class Smac(AsyncEnv):
    """B games of StarCraft II on a SMAC map, each in a process of its own: an `AsyncEnv` of `SmacGame`.

    Args:
        map_name: as in SMAC, such as `8m`.
        n_envs: number of games, B.
        seed: seed of the games; each game gets its own seed from it, and another one after a restart.
        min_batch, max_wait_s: as for `AsyncEnv`.
        step_timeout_s: a step that takes longer counts as hanging.
        start_timeout_s: the same for the start of an episode, which may include starting the game itself.
        options: further arguments of SMAC's `StarCraft2Env`.

    Raises:
        ValueError, UsageError, EnvFailed: as `AsyncEnv`.
    """

    def __init__(
        self,
        map_name: str,
        n_envs: int = 1,
        *,
        seed: int = 0,
        min_batch: int = 1,
        max_wait_s: float = 0.002,
        step_timeout_s: float = 60.0,
        start_timeout_s: float = 180.0,
        **options: Any,
    ) -> None:
        super().__init__(
            partial(SmacGame, map_name, **options),
            n_envs,
            seed=seed,
            min_batch=min_batch,
            max_wait_s=max_wait_s,
            step_timeout_s=step_timeout_s,
            start_timeout_s=start_timeout_s,
        )
