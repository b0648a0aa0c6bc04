"""One game of StarCraft II in its own process: the StarCraft challenge as an `Env` of one copy."""

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.envs.base import Env, EnvSpec
from orchestra import UsageError

ORIGIN = "https://github.com/oxwhirl/smac"


class SmacGame(Env):
    """One game. StarCraft II itself starts with the first `reset`.

    Args:
        map_name: as in SMAC, such as `8m`.
        n_envs: 1.
        seed: of the game.
        options: further arguments of SMAC's `StarCraft2Env`.

    Raises:
        UsageError: the StarCraft challenge is not installed, or the package `smac` is another one.
        ValueError: a size of the game is not positive, or one of its arrays has another shape.
    """

    def __init__(self, map_name: str, n_envs: int = 1, *, seed: int = 0, **options: Any) -> None:
        self.n_envs = n_envs
        make = _star_craft()
        self._game = make(**{"continuing_episode": True, **options, "map_name": map_name, "seed": seed})
        info = self._game.get_env_info()
        names = ("n_agents", "n_actions", "obs_shape", "state_shape", "episode_limit")
        sizes = {name: int(info[name]) for name in names}
        if not all(size > 0 for size in sizes.values()):
            raise ValueError(f"the game's sizes make no sense: {sizes}")
        self.spec = EnvSpec(map_name, *sizes.values())  # type: ignore[arg-type]  # five sizes, and no fields
        self._allocate()
        self._lost = np.zeros(1, np.bool_)

    def failed_copies(self) -> NDArray[np.bool_]:
        return self._lost

    def reset(self, which: NDArray[np.bool_] | None = None) -> None:
        self._game.reset()
        self._show()

    def step(self, actions: NDArray[np.int64]) -> None:
        restarts = getattr(self._game, "force_restarts", 0)
        reward, ended, info = self._game.step(actions[0].tolist())
        self._lost[0] = getattr(self._game, "force_restarts", 0) != restarts
        if self._lost[0]:
            # SMAC restarted a crashed game, and reports this as a normal end of the episode; no policy should see it.
            self.reset()
            return
        self._show()
        cut = bool(info.get("episode_limit", False))
        self.reward[0] = reward
        self.terminated[0], self.truncated[0] = bool(ended) and not cut, cut
        self.won[0] = bool(info.get("battle_won", False))

    def close(self) -> None:
        self._game.close()

    def _show(self) -> None:
        self.reward[0], self.terminated[0], self.truncated[0], self.won[0] = 0.0, False, False, False
        shown = (self.obs, self._game.get_obs()), (self.state, self._game.get_state())
        for memory, value in (*shown, (self.available, self._game.get_avail_actions())):
            array = np.asarray(value, memory.dtype)
            if array.shape != memory.shape[1:]:
                raise ValueError(f"the game shows an array of the shape {array.shape}, not {memory.shape[1:]}")
            memory[0] = array


def _star_craft() -> Any:
    """Return the class of the StarCraft challenge."""
    try:
        return importlib.import_module("smac.env").StarCraft2Env
    except (ImportError, AttributeError) as error:
        try:
            importlib.import_module("smac")
        except ImportError:
            missing = "the StarCraft challenge is not installed"
        else:
            missing = f"the package 'smac' that is installed is not the StarCraft challenge ({error})"
        raise UsageError(
            f"{missing}: uninstall any 'smac' of PyPI, which is an optimiser of hyper-parameters, run "
            f"`pip install git+{ORIGIN}.git`, and install StarCraft II and the SMAC maps as {ORIGIN} says"
        ) from error
