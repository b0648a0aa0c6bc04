"""The enemies' side: observations and actions for a policy or a script that commands them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import kernel
from .checks import opponent_actions
from .kernel.constants import CELLS, Played, Seen
from .options import EDITIONS, Features
from .records import UNIT, records
from .scenarios import Scenario
from .tables import swap_sides

_TURNED = ("x", "goal_x", "hit_x"), ("y", "goal_y", "hit_y")
_REVERSED = ("facing_x", "facing_y", "heading_x", "heading_y", "steer_x", "steer_y", "push_x", "push_y")


class Opposition:
    """Observations and available actions of the enemies, computed as those of the agents, on a rotated map.

    The map is rotated by 180 degrees, so that the policy of one side can command the other: its own units come first,
    start in the west and go east, and columns have the same order as for the agents. With E enemies and A agents:

    Attributes:
        obs: (B, E, O') float32, the observation of each enemy.
        state: (B, S') float32, what only a critic sees.
        available: (B, E, U') bool, what each may do: 0 nothing, for the dead; 1 stop; 2 to 5 move to their north,
            south, east, west; 6 + k attack agent k, or heal friend k. U' is 6 + A, or 6 + max(A, E) if armies with
            healers are drawn.
        units: (B, E + A) of `records.UNIT`, own units first, rotated as well. For reading only.
        over: (B,) bool, battles that have ended; actions there are ignored.
    """

    def __init__(self, scenario: Scenario, features: Features, n_envs: int) -> None:
        self._scenario = scenario
        self._swapped = replace(scenario, allies=scenario.enemies, enemies=scenario.allies)
        self.n_agents = len(scenario.enemies)
        self.n_actions = self._swapped.n_actions
        total = len(scenario.allies) + len(scenario.enemies)
        self.obs = np.zeros((n_envs, self.n_agents, features.obs_size(self._swapped)), np.float32)
        self.state = np.zeros((n_envs, features.state_size(self._swapped)), np.float32)
        self.available = np.zeros((n_envs, self.n_agents, self.n_actions), np.bool_)
        self.units: NDArray[Any] = records(np.zeros((n_envs, total), UNIT))
        self.over = np.ones(n_envs, np.bool_)

    def look(self, played: Played, seen: Seen) -> None:
        """Write all arrays, from those of the allies' side."""
        units, battles, kinds, rules = played
        footing, height, *_ = seen
        allies = len(self._scenario.allies)
        self.units[:, : self.n_agents] = units[:, allies:]
        self.units[:, self.n_agents :] = units[:, :allies]
        for fields in _TURNED:
            for field in fields:
                self.units[field] = CELLS - self.units[field]
        for field in _REVERSED:
            self.units[field] *= -1.0
        for field in ("target", "hit_target", "attacker"):
            index = self.units[field]
            other = np.where(index < allies, index + self.n_agents, index - allies)
            self.units[field] = np.where(index < 0, -1, other)
        turned = rules.copy()
        turned["allies"], turned["enemies"] = self.n_agents, allies
        turned["actions"] = self.n_actions
        turned["edition"], turned["action_mask"] = EDITIONS.index("2022"), True  # the filter is for agents only
        turned["ally_shield"], turned["enemy_shield"] = rules["enemy_shield"], rules["ally_shield"]
        self.over[:] = battles["over"]
        kernel.show_all(
            (self.units, battles, records(swap_sides(kinds, self._scenario)), records(turned)),
            (
                np.ascontiguousarray(footing[:, ::-1, ::-1]),
                np.ascontiguousarray(height[::-1, ::-1]),
                self.obs,
                self.state,
                self.available,
            ),
        )

    def orders_of(self, opponent: "Opponent") -> NDArray[np.int64]:
        """Return the actions that the opponent chooses, (B, E).

        Raises:
            ValueError: the actions have another shape or type, or one is not available.
        """
        return opponent_actions(opponent(self), self.available, self.over)


Opponent = Callable[[Opposition], NDArray[np.int64]]
"""A function from the enemies' observations to their actions (B, E), called before every step."""
