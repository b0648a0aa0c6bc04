"""SMACv2's distributions: each draws a part of an episode's configuration, a dictionary for `StarCraft2Env.reset`.

A distribution is built from one entry of a `capability_config`, with `n_units`, `n_enemies` and `env_key` added. An
optional `seed` in it, which SMACv2 does not have, makes the draws reproducible.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import combinations_with_replacement
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

Drawn = dict[str, dict[str, Any]]
CORNERS = np.array([[-1.0, -1.0], [-1.0, 1.0], [1.0, 1.0], [1.0, -1.0]])
NEAREST = 2.0
"""The least distance of a surrounding group from the middle, in x and in y."""


class Distribution(ABC):
    """Draws a part of each episode's configuration.

    Args:
        config: the entry of a `capability_config`.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.env_key: str = config.get("env_key", "")
        self.rng = np.random.default_rng(config.get("seed"))

    @abstractmethod
    def generate(self) -> Drawn:
        """Return the drawn part of an episode's configuration, by its keys."""

    @property
    def n_tasks(self) -> float:
        """The number of possible outcomes."""
        return inf

    def team(self, units: Sequence[str]) -> list[str]:
        """Return these units in random order."""
        return [units[k] for k in self.rng.permutation(len(units))]

    def alone(self, units: Sequence[str]) -> bool:
        """True if these units may not form an army alone."""
        return set(units) <= set(self.config.get("exception_unit_types", ()))


class Fixed(Distribution):
    """Draws one of the given `items`: in order if `test_mode` is set, else uniformly."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self._next = 0

    def generate(self) -> Drawn:
        items = self.config["items"]
        k = self._next if self.config.get("test_mode", False) else int(self.rng.integers(len(items)))
        self._next = (k + 1) % len(items)
        item = items[k]
        if self.env_key != "team_gen":
            return {self.env_key: {"item": item, "id": k}}
        sides = item if isinstance(item, Mapping) else {"ally_team": item, "enemy_team": item}
        return {self.env_key: {**sides, "item": item, "id": k}}

    @property
    def n_tasks(self) -> float:
        return len(self.config["items"])


class AllTeams(Distribution):
    """Draws uniformly from all armies of `n_units`, regardless of order; both sides have the same army."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        every = combinations_with_replacement(config["unit_types"], config["n_units"])
        self._teams = [team for team in every if not self.alone(team)]

    def generate(self) -> Drawn:
        k = int(self.rng.integers(len(self._teams)))
        team = self.team(self._teams[k])
        return {self.env_key: {"ally_team": team, "enemy_team": list(team), "id": k}}

    @property
    def n_tasks(self) -> float:
        return len(self._teams)


class WeightedTeams(Distribution):
    """Draws allies by `weights`; the enemies have the same types in the same order, further ones are drawn likewise."""

    def generate(self) -> Drawn:
        allies, enemies = self.config["n_units"], self.config["n_enemies"]
        ours = self._army(allies)
        theirs = ours[:enemies] + (self._army(enemies - allies) if enemies > allies else [])
        return {self.env_key: {"ally_team": ours, "enemy_team": theirs, "id": 0}}

    def _army(self, size: int) -> list[str]:
        units = list(self.config["unit_types"])
        while True:
            army = [units[k] for k in self.rng.choice(len(units), size, p=self.config["weights"])]
            if not self.alone(army):
                return army


class PerAgentUniform(Distribution):
    """Draws uniform numbers (n_units, k) between `lower_bound` and `upper_bound`, both (k,)."""

    def generate(self) -> Drawn:
        low, high = self.config["lower_bound"], self.config["upper_bound"]
        return {self.env_key: {"item": self.rng.uniform(low, high, (self.config["n_units"], len(low))), "id": 0}}


class Mask(Distribution):
    """Draws a mask (n_units, n_enemies): 0 with `mask_probability`, else 1, which hides an enemy's health and type."""

    def generate(self) -> Drawn:
        shape = (self.config["n_units"], self.config["n_enemies"])
        return {
            "enemy_mask": {"item": (self.rng.random(shape) >= self.config["mask_probability"]).astype(int), "id": 0}
        }


class Places(Distribution):
    """Draws the starting positions of all units, on a map of `map_x` by `map_y` cells."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.size = np.array([config["map_x"], config["map_y"]], np.float64)

    def generate(self) -> Drawn:
        ours, theirs = self.places(self.config["n_units"], self.config["n_enemies"])
        return {
            "ally_start_positions": {"item": ours, "id": 0},
            "enemy_start_positions": {"item": theirs, "id": 0},
        }

    @abstractmethod
    def places(self, allies: int, enemies: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the places of both sides, (allies, 2) and (enemies, 2)."""


class Reflect(Places):
    """Places allies anywhere in the west, enemies at the mirrored points, further enemies anywhere in the east."""

    def places(self, allies: int, enemies: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        half = self.size[0] / 2.0
        ours = self.rng.uniform((0.0, 0.0), (half - 1.0, self.size[1]), (allies, 2))
        theirs = self.rng.uniform((half, 0.0), self.size, (enemies, 2))
        both = min(allies, enemies)
        theirs[:both, 0], theirs[:both, 1] = self.size[0] - ours[:both, 0], ours[:both, 1]
        return ours, theirs


class Surrounded(Places):
    """Places allies in the middle and enemies in one to four groups on the diagonals, each group on one point."""

    def places(self, allies: int, enemies: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        groups = int(self.rng.integers(1, 5))
        sizes = self.rng.multinomial(enemies, np.full(groups, 1.0 / groups))
        share = self.rng.random(groups)[:, None]
        corners = CORNERS[self.rng.permutation(4)[:groups]]
        middle = self.size / 2.0
        points = middle + corners * (NEAREST * share + middle * (1.0 - share))
        return np.tile(middle, (allies, 1)), np.repeat(points, sizes, axis=0)


class SurroundedAndReflect(Places):
    """Places units as `Reflect` with probability `p`, else as `Surrounded`."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self._kinds = Reflect(config), Surrounded(config)
        for kind in self._kinds:
            kind.rng = self.rng

    def places(self, allies: int, enemies: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return self._kinds[self.rng.random() > self.config["p"]].places(allies, enemies)


_DISTRIBUTIONS: dict[str, type[Distribution]] = {
    "weighted_teams": WeightedTeams,
    "all_teams": AllTeams,
    "fixed": Fixed,
    "surrounded_and_reflect": SurroundedAndReflect,
    "surrounded": Surrounded,
    "reflect_position": Reflect,
    "per_agent_uniform": PerAgentUniform,
    "mask": Mask,
}


def get_distribution(key: str) -> type[Distribution]:
    """Return the distribution class of a `dist_type`.

    Raises:
        ValueError: the `dist_type` is unknown; the message lists the known ones.
    """
    if key not in _DISTRIBUTIONS:
        raise ValueError(f"there is no distribution {key!r}; there are {', '.join(_DISTRIBUTIONS)}")
    return _DISTRIBUTIONS[key]


def register_distribution(key: str, cls: type[Distribution]) -> None:
    """Register a distribution class under a `dist_type`."""
    _DISTRIBUTIONS[key] = cls
