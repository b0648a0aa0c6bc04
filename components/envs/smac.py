"""StarCraft II itself, through the StarCraft challenge (oxwhirl/smac), where both are installed."""

from functools import partial
from typing import Any

from components.envs.asynchronous.env import AsyncEnv
from components.envs.smac_game import SmacGame


class Smac(AsyncEnv):
    """B games of StarCraft II on a SMAC map, each in a process of its own: an `AsyncEnv` of `SmacGame`.

    Args:
        map_name: as in SMAC, `8m`.
        n_envs: how many games, B.
        seed: of the games; each has its own, and another after a restart.
        min_batch, max_wait_s: as for `AsyncEnv`.
        step_timeout_s: a step that takes longer hangs.
        start_timeout_s: likewise for the start of an episode, with which the game itself may have to start.
        options: whatever else SMAC's `StarCraft2Env` takes.

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
