"""The options of SMAC: observation features and rewards. The defaults are SMAC's."""

from dataclasses import dataclass
from typing import Literal, get_args

from .scenarios import Scenario


def shield_bit(scenario: Scenario, *, enemies: bool) -> int:
    """Return 1 if that side's units have a shield column, as all protoss units do, else 0."""
    side = scenario.enemies if enemies else scenario.allies
    return int(side[0].race == "protoss")


Edition = Literal["2022", "2023", "2023-intended"]
"""Editions of SMACv2: without a filter of enemies, with it, and with the filter as it was probably meant."""
EDITIONS: tuple[Edition, ...] = get_args(Edition)


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Which columns observations and states have, and which units they show.

    Raises:
        ValueError: the edition is unknown, or the probability is not between 0 and 1.
    """

    obs_all_health: bool = True
    obs_own_health: bool = True
    obs_last_action: bool = False
    obs_pathing_grid: bool = False
    obs_terrain_height: bool = False
    obs_timestep_number: bool = False
    obs_own_position: bool | None = None
    """The agent's place, (x, y) / 32: an option of SMACv2. By default, it is on where armies are drawn."""
    obs_instead_of_state: bool = False
    """Whether the state consists of all observations, one after the other."""
    state_last_action: bool = True
    state_timestep_number: bool = False
    obs_starcraft: bool = True
    """Whether observations contain anything but the time."""
    fully_observable: bool = False
    """Whether agents see all living units, at any distance."""
    action_mask: bool = True
    """Whether only units in reach are available as targets. Else all living ones are, and an agent that chooses one out
    of reach goes on with its present order."""
    edition: Edition = "2022"
    """The edition of SMACv2 whose rules decide which agents see an enemy. With the filter, one must find it first."""
    prob_obs_enemy: float = 1.0
    """The probability that each other agent learns of an enemy that was found, where there is a filter."""

    def __post_init__(self) -> None:
        if self.edition not in EDITIONS:
            raise ValueError(f"edition is {self.edition!r}, must be one of {', '.join(EDITIONS)}")
        if not 0.0 <= self.prob_obs_enemy <= 1.0:
            raise ValueError(f"prob_obs_enemy is {self.prob_obs_enemy!r}, must be between 0 and 1")

    def shows_own_position(self, scenario: Scenario) -> bool:
        """Return whether observations contain the agent's place."""
        return scenario.draw is not None if self.obs_own_position is None else self.obs_own_position

    def move_size(self) -> int:
        """Return the number of columns about an agent's moves and the ground around it."""
        return 4 + 8 * self.obs_pathing_grid + 9 * self.obs_terrain_height

    def enemy_shape(self, scenario: Scenario) -> tuple[int, int]:
        """Return the number of enemies, and of columns about each."""
        health = (1 + shield_bit(scenario, enemies=True)) * self.obs_all_health
        return len(scenario.enemies), 4 + len(scenario.enemy_types) + health

    def ally_shape(self, scenario: Scenario) -> tuple[int, int]:
        """Return the number of friends of an agent, and of columns about each."""
        health = (1 + shield_bit(scenario, enemies=False)) * self.obs_all_health
        action = scenario.n_actions * self.obs_last_action
        return len(scenario.allies) - 1, 4 + len(scenario.ally_types) + health + len(scenario.capabilities) + action

    def own_size(self, scenario: Scenario) -> int:
        """Return the number of columns about the agent itself."""
        health = (1 + shield_bit(scenario, enemies=False)) * (self.obs_own_health or self.obs_all_health)
        place = 2 * self.shows_own_position(scenario) + 2 * (scenario.looks > 0)
        return len(scenario.ally_types) + health + len(scenario.capabilities) + place + self.obs_timestep_number

    def obs_size(self, scenario: Scenario) -> int:
        """Return the number of columns of an observation, O."""
        if not self.obs_starcraft:
            return int(self.obs_timestep_number)
        enemies, enemy_width = self.enemy_shape(scenario)
        allies, ally_width = self.ally_shape(scenario)
        return self.move_size() + enemies * enemy_width + allies * ally_width + self.own_size(scenario)

    def state_size(self, scenario: Scenario) -> int:
        """Return the number of columns of a state, S."""
        allies, enemies = len(scenario.allies), len(scenario.enemies)
        if self.obs_instead_of_state:
            return allies * self.obs_size(scenario)
        own = len(scenario.capabilities) + 2 * (scenario.looks > 0)
        return (
            allies * (4 + shield_bit(scenario, enemies=False) + own + len(scenario.ally_types))
            + enemies * (3 + shield_bit(scenario, enemies=True) + len(scenario.enemy_types))
            + allies * scenario.n_actions * self.state_last_action
            + self.state_timestep_number
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewards:
    """Terms of the team's reward."""

    sparse: bool = False
    """Whether only the end counts: 1 for a win, -1 for a defeat, 0 for a draw, before scaling."""
    only_positive: bool = True
    """Whether own losses cost nothing."""
    death_value: float = 10.0
    win: float = 200.0
    defeat: float = 0.0
    negative_scale: float = 0.5
    """The weight of own losses relative to the enemy's."""
    scale: bool = True
    scale_rate: float = 20.0
    """The return of a perfect win after scaling."""
    fixed_divisor: bool = False
    """Where armies are drawn: whether the divisor of a battle's first episode is kept, as in SMACv2. Else a perfect win
    has the same return over strong enemies as over weak ones."""

    def maximum(self, scenario: Scenario) -> float:
        """Return the unscaled return of a win in which no enemy recovers health or shield."""
        pool = sum(unit.health + unit.shield for unit in scenario.enemies)
        return pool + self.death_value * len(scenario.enemies) + self.win

    def divisor(self, scenario: Scenario) -> float:
        """Return the divisor of every reward."""
        return self.maximum(scenario) / self.scale_rate if self.scale else 1.0
