"""The view of side 2 of air combats, for the policy or script that commands it."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.envs.air_combat import kernel
from components.envs.air_combat.kernel.constants import ABOUT_ENEMY, ABOUT_FRIEND, OWN, Played, Sensed
from components.envs.skirmish.checks import opponent_actions


class Opposition:
    """Observations and available actions of side 2, computed like those of side 1 on the map turned by 180 degrees.

    So the policy of one side can command the other. With E units of side 2 and A of side 1:

    Attributes:
        obs: (B, E, O') float32, the observation of each unit.
        state: (B, S) float32, for a critic only.
        available: (B, E, U') bool, the available actions of each unit, as in `AirBattles`.
        fresh: (B,) bool, rounds that have just begun: drop any memory of the previous round.
        over: (B,) bool, rounds that have ended: actions in them are ignored.
    """

    def __init__(self, n_envs: int, n_units: int, n_enemies: int, n_actions: int, state_size: int) -> None:
        self.n_agents, self.n_actions = n_units, n_actions
        obs_size = OWN + ABOUT_ENEMY * n_enemies + ABOUT_FRIEND * (n_units - 1)
        self.obs = np.zeros((n_envs, n_units, obs_size), np.float32)
        self.state = np.zeros((n_envs, state_size), np.float32)
        self.available = np.zeros((n_envs, n_units, n_actions), np.bool_)
        self.fresh, self.over = np.ones((2, n_envs), np.bool_)
        self._first = n_enemies

    def look(self, played: Played, sensed: Sensed) -> None:
        """Write all arrays."""
        battles: Any = played[2]
        kernel.show_all(self._first, played, sensed, (self.obs, self.state, self.available))
        self.fresh[:] = battles["steps"] == 0
        self.over[:] = battles["over"]

    def actions_of(self, opponent: "Opponent") -> NDArray[np.int64]:
        """Return the actions that the opponent chooses, (B, E).

        Raises:
            ValueError: the opponent returns another shape or type, or an action that is not available.
        """
        return opponent_actions(opponent(self), self.available, self.over)


Opponent = Callable[[Opposition], NDArray[np.int64]]
"""A function from the observations of side 2 to its actions (B, E), called before every step."""
