"""An environment whose steps take as long as those of the real game, so that workers can be measured without it.

Users report on the order of 100 steps per second for StarCraft II under SMAC. Its steps are not all alike: now and then
one takes several times as long. The durations here have such a distribution; they are drawn, not recorded:

    96 % of the steps    uniform between 6 and 12 ms
    4 %, the stragglers  uniform between 20 and 50 ms

The mean is 10.04 ms. B copies, A agents.
"""

from collections.abc import Callable
from time import monotonic
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from components.envs.base import Env, TimedEnv

STRAGGLERS = 0.04
"""Share of the steps that are stragglers."""
USUAL_S = (0.006, 0.012)
"""Shortest and longest usual step, in seconds."""
STRAGGLER_S = (0.020, 0.050)
"""Shortest and longest straggler, in seconds."""
MEAN_S = (1.0 - STRAGGLERS) * sum(USUAL_S) / 2 + STRAGGLERS * sum(STRAGGLER_S) / 2
"""Mean duration of a step, in seconds."""

_DRAWN = "game_speed/drawn"
_STREAM = 0x5EED  # a stream of its own: separate from other draws with the same seed


class GameSpeed(TimedEnv):
    """B copies of an environment, whose steps take as long as those of the real game.

    A step waits until the duration drawn for it has passed, without using the processor or holding the GIL. The time
    that the environment itself needs is part of that duration. Starting an episode takes no additional time.

    The n-th duration of a copy depends only on `seed` and the number of the copy, not on B, on actions or on the clock.

    Args:
        make: makes the environment, such as `partial(Skirmish, "8m")`.
        n_envs: B.
        seed: of the environment and of the durations.
        copies: how the B copies run. In "parallel" the step of the batch takes as long as its slowest copy, as if each
            game had a process of its own and a step waited for all. In "serial" it takes the sum: one game after the
            other.

    Raises:
        ValueError: an unknown value of `copies`, or what `make` raises.
    """

    def __init__(
        self,
        make: Callable[..., Env],
        n_envs: int = 1,
        *,
        seed: int = 0,
        copies: Literal["parallel", "serial"] = "parallel",
    ) -> None:
        if copies not in ("parallel", "serial"):
            raise ValueError(f"copies is {copies!r}, must be 'parallel' or 'serial'")
        self._env = env = make(n_envs, seed=seed)
        self.spec, self.n_envs = env.spec, env.n_envs
        self.obs, self.state, self.available = env.obs, env.state, env.available
        self.reward, self.terminated, self.truncated, self.won = env.reward, env.terminated, env.truncated, env.won
        self._seed = seed
        self._together: Callable[[list[float]], float] = max if copies == "parallel" else sum
        self._drawn = 0
        self._generators = self._generators_after(0)

    def __repr__(self) -> str:
        return f"<GameSpeed of {self._env!r}>"

    @property
    def at_full_speed(self) -> Env:
        """The environment itself."""
        return self._env

    def prepare(self) -> None:
        """Prepare the environment."""
        self._env.prepare()

    def preload(self) -> None:
        """Load what the environment loads."""
        self._env.preload()

    def reset(self, which: NDArray[np.bool_] | None = None) -> None:
        """Start a new episode in the copies selected by `which` (B,), or in all copies if it is None.

        Raises:
            ValueError: as the environment.
        """
        self._env.reset(which)

    def begin_step(self, actions: NDArray[np.int64]) -> float:
        """Make one step in every copy, `actions` (B, A); return the time at which its drawn duration ends.

        Raises:
            ValueError: as the environment; nothing has been stepped or drawn then.
        """
        began = monotonic()
        self._env.step(actions)
        return began + self._duration()

    def failed_copies(self) -> NDArray[np.bool_] | None:
        """Return which copies (B,) lost their episode in the last step, or None if no copy ever fails."""
        return self._env.failed_copies()

    def snapshot(self) -> dict[str, NDArray[Any]] | None:
        """Return the environment's snapshot and the number of durations drawn; None if it takes no snapshots."""
        inner = self._env.snapshot()
        return None if inner is None else {**inner, _DRAWN: np.array(self._drawn)}

    def restore(self, snapshot: dict[str, NDArray[Any]]) -> None:
        """Continue from a snapshot, with the durations that would have come next.

        Raises:
            ValueError: the snapshot is of something else; nothing has been changed then.
        """
        if _DRAWN not in snapshot:
            raise ValueError(f"snapshot does not fit {self!r}: it lacks {_DRAWN}")
        self._env.restore({name: array for name, array in snapshot.items() if name != _DRAWN})
        self._drawn = int(snapshot[_DRAWN])
        self._generators = self._generators_after(self._drawn)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _duration(self) -> float:
        """Draw the durations of all copies; return that of the batch, in seconds."""
        self._drawn += 1
        return self._together([_seconds(generator.random()) for generator in self._generators])

    def _generators_after(self, drawn: int) -> list[np.random.Generator]:
        """Return the generators of all copies, in their state after `drawn` draws."""
        streams = [np.random.SeedSequence(self._seed, spawn_key=(_STREAM, b)) for b in range(self.n_envs)]
        return [np.random.Generator(np.random.PCG64(stream).advance(drawn)) for stream in streams]


def _seconds(share: float) -> float:
    """Return the duration below which `share` of all steps lie: the inverse of their distribution function."""
    usual = 1.0 - STRAGGLERS
    if share < usual:
        return USUAL_S[0] + (USUAL_S[1] - USUAL_S[0]) * share / usual
    return STRAGGLER_S[0] + (STRAGGLER_S[1] - STRAGGLER_S[0]) * (share - usual) / STRAGGLERS
