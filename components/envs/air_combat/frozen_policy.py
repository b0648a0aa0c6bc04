"""Self-play: a policy that was trained as side 1 of an air combat commands side 2."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.envs.air_combat.env import AirCombat
from components.envs.air_combat.opposition import Opposition
from components.policies.acting import ActingPolicy
from components.reporting.saved_policy import load_policy
from orchestra import RunDirectory, UsageError


class FrozenPolicy:
    """An opponent that acts greedily by a policy with fixed parameters.

    Args:
        policy: of side 1 of an air combat with equal sides.
    """

    def __init__(self, policy: ActingPolicy) -> None:
        self._policy = policy
        self._rng = np.random.default_rng(0)
        self._hidden: NDArray[np.float32] | None = None
        self._last: NDArray[np.int64] | None = None

    def __call__(self, seen: Opposition) -> NDArray[np.int64]:
        n_envs = len(seen.fresh)
        if self._hidden is None or self._last is None:
            self._hidden = self._policy.initial_hidden(n_envs)
            self._last = np.full((n_envs, seen.n_agents), -1, np.int64)
        if seen.fresh.any():
            self._hidden[seen.fresh] = self._policy.initial_hidden(int(seen.fresh.sum()))
            self._last[seen.fresh] = -1
        frames = {"obs": seen.obs, "state": seen.state, "available": seen.available}
        acted = self._policy.act_on(frames, self._last, self._hidden, epsilon=0.0, rng=self._rng)
        self._last, self._hidden = acted.actions, acted.hidden
        return np.asarray(acted.actions, np.int64)


def against_run(scenario: str, run: str, n_envs: int = 1, *, seed: int, **options: Any) -> AirCombat:
    """Return air combats in which the best parameters of a run command side 2.

    Args:
        scenario: as for `AirBattles`.
        run: directory of a run on an air combat with the same units and courses.
        n_envs: copies.
        seed: of the rounds.
        **options: further options of `AirBattles`.

    Raises:
        UsageError: there is no such run, or its policy has other observations or actions than side 2.
    """
    env, policy, _, _ = load_policy(RunDirectory.open(Path(run)), None, 1, seed=seed)
    mine = AirCombat(scenario, n_envs, seed=seed, opponent=FrozenPolicy(policy), **options)
    theirs = (env.spec.n_agents, env.spec.n_actions, env.spec.obs_size)
    env.close()
    wanted = mine.opposition_sizes()
    if theirs != wanted:
        raise UsageError(
            f"--env-arg: opponent={run} was trained with {theirs[0]} agents, {theirs[1]} actions and observations of "
            f"{theirs[2]}; side 2 of {mine.spec.name} has {wanted[0]}, {wanted[1]} and {wanted[2]}"
        )
    return mine
