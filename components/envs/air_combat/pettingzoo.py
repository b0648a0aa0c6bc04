"""Air combat as a PettingZoo `ParallelEnv` (extra `pettingzoo`)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.envs.air_combat.battles import AirBattles
from components.envs.skirmish.checks import are_available
from components.envs.skirmish.pettingzoo import BattleParallelEnv


class AirCombatParallelEnv(BattleParallelEnv[AirBattles]):
    """One battle; agents are side 1: `red_detector_0`, …, `red_fighter_0`, …

    Dead agents have one action, 0. Each agent gets its own reward and, at the end, that of the round. `state()` is for
    a critic only. The `infos` of each agent hold `alive`, `won`, `outcome` of side 1 (2 total win to -2 total loss),
    and `replaced`: its action was unavailable and replaced by 0, because much PettingZoo code does not use masks.

    Args:
        scenario: as for `AirBattles`.
        seed: of the rounds, until `reset` gives another.
        **options: further options of `AirBattles`.

    Raises:
        ValueError: as `AirBattles`.
    """

    def __init__(self, scenario: str = "fighter10v10", *, seed: int = 0, **options: Any) -> None:
        first = AirBattles(scenario, 1, seed=seed, **options)
        detectors = sum(unit.kind == "detector" for unit in first.scenario.red)
        agents = [f"red_detector_{i}" for i in range(detectors)]
        agents += [f"red_fighter_{i}" for i in range(first.n_agents - detectors)]
        super().__init__(
            f"air_combat_{first.scenario.name}_v0",
            agents,
            np.inf,
            seed,
            lambda seed: AirBattles(scenario, 1, seed=seed, **options),
        )

    def _chosen(self, given: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        may = are_available(given, self._env.available)
        return np.where(may, given, 0), ~may

    def _rewards(self) -> list[float]:
        own = self._env.rewards[0]
        of_round = float(self._env.reward[0] - own.sum())
        return [float(reward) + of_round for reward in own]

    def _info(self, i: int) -> dict[str, Any]:
        env = self._env
        of_round = {"won": bool(env.won[0]), "outcome": int(env.battles["outcome"][0])}
        return {"alive": bool(env.units["alive"][0, i]), **of_round}
