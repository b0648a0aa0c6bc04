"""The queries of SMAC's class for units and the ground around them."""

from math import hypot
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .battles import Battles
from .kernel.constants import CELLS, FULL_ENERGY, MIDDLE
from .scenarios import Scenario
from .unit_view import UnitView, view_of
from .units import UNIT_TYPES, UnitType

NORTH, SOUTH, EAST, WEST = range(4)
"""SMAC's numbers of the directions: two less than those of the move actions."""
HEIGHT = 255.0
"""The greatest height of the ground in the game's own units."""


class UnitQueries:
    """The units of one battle, with the names of `smac.env.StarCraft2Env`."""

    n_obs_pathing = 8
    n_obs_height = 9
    map_x = CELLS
    map_y = CELLS
    max_distance_x = CELLS
    max_distance_y = CELLS

    map_type: str
    n_agents: int
    n_enemies: int
    skirmish: Battles
    episode_limit: int
    last_action: NDArray[np.float64]
    shield_bits_ally: int
    shield_bits_enemy: int
    unit_type_bits: int
    state_last_action: bool
    state_timestep_number: bool
    reward_sparse: bool
    reward_only_positive: bool
    reward_death_value: float
    reward_negative_scale: float
    _scenario: Scenario
    _move_amount: float
    _before: Any
    """The units before the last step, (N,) of `records.UNIT`; None before the first."""

    def _name_units(self) -> None:
        """Set `marine_id` and the other type numbers, `pathing_grid` and `terrain_height`."""
        draw = self._scenario.draw
        own = {kind.type_id for kind in (draw.types if draw else self._scenario.allies)}
        ids = {name: kind.type_id if kind.type_id in own else 0 for name, kind in UNIT_TYPES.items()}
        self.marine_id, self.marauder_id, self.medivac_id = ids["marine"], ids["marauder"], ids["medivac"]
        self.hydralisk_id, self.zergling_id, self.baneling_id = ids["hydralisk"], ids["zergling"], ids["baneling"]
        self.stalker_id, self.colossus_id, self.zealot_id = ids["stalker"], ids["colossus"], ids["zealot"]
        self.pathing_grid: NDArray[np.bool_] = self._scenario.terrain.walkable()
        """(32, 32) indexed [x, y]: whether a cell can be walked on."""
        self.terrain_height: NDArray[np.float64] = self._scenario.terrain.height() / HEIGHT
        """(32, 32) indexed [x, y]: the height of a cell, 0 to 1."""

    @property
    def agents(self) -> dict[int, UnitView]:
        """The allies by agent number."""
        return self._views(self.skirmish.units[0], self.n_agents)

    @property
    def enemies(self) -> dict[int, UnitView]:
        """The enemies by number: enemy k is the target of attack action `n_actions_no_attack` + k."""
        return self._views(self.skirmish.units[0], self.n_enemies, self.n_agents)

    @property
    def previous_ally_units(self) -> dict[int, UnitView] | None:
        """The allies before the last step; None before the first step of an episode."""
        return None if self._before is None else self._views(self._before, self.n_agents)

    @property
    def previous_enemy_units(self) -> dict[int, UnitView] | None:
        """The enemies before the last step; None before the first step of an episode."""
        return None if self._before is None else self._views(self._before, self.n_enemies, self.n_agents)

    def _views(self, units: Any, count: int, first: int = 0) -> dict[int, UnitView]:
        kinds = self.skirmish.types_in(0)
        return {i: view_of(units[first + i], kinds[first + i], first + i, ally=first == 0) for i in range(count)}

    @property
    def fov_directions(self) -> NDArray[np.float64]:
        """(A, 2): the middle of each agent's cone of vision, a unit vector."""
        units = self.skirmish.units[0, : self.n_agents]
        return np.column_stack([units["look_x"], units["look_y"]])

    def reward_battle(self) -> float:
        """Return the unscaled reward of the last step without that for the battle's end; 0 if rewards are sparse."""
        if self.reward_sparse or self._before is None:
            return 0.0
        health, shield = self.skirmish.units["health"][0], self.skirmish.units["shield"][0]
        lived = self._before["health"] > 0.0
        now = np.where(health > 0.0, health + shield, 0.0)
        harm = np.where(lived, self._before["health"] + self._before["shield"] - now, 0.0)
        deaths = lived & (health <= 0.0)
        ours, theirs = slice(self.n_agents), slice(self.n_agents, None)
        gained = float(harm[theirs].sum() + self.reward_death_value * deaths[theirs].sum())
        if self.reward_only_positive:
            return abs(gained) if self._scenario.draw is None else max(gained, 0.0)
        lost = float(harm[ours].sum() + self.reward_death_value * deaths[ours].sum())
        return gained - self.reward_negative_scale * lost

    def init_units(self) -> None:
        """Do nothing: `agents` and `enemies` always show the units as they are."""

    def update_units(self) -> int | None:
        """Return the result of the battle: 1 won, -1 lost, 0 if no unit of either side lives, None if it goes on."""
        health = self.skirmish.units["health"][0]
        allies, enemies = (health[: self.n_agents] > 0.0).any(), (health[self.n_agents :] > 0.0).any()
        if (enemies and not allies) or self.only_medivac_left(ally=True):
            return -1
        if (allies and not enemies) or self.only_medivac_left(ally=False):
            return 1
        return None if allies else 0

    def only_medivac_left(self, ally: bool) -> bool:
        """Return whether a side has lost because only Medivacs of it are alive, on a map with Medivacs.

        On the maps of type MMM, the allies lose if no unit but Medivacs is alive, the enemies if exactly one unit is
        alive, a Medivac: SMAC's rule. In SMACv2, either side loses if no unit but Medivacs is alive.
        """
        if self.map_type not in ("MMM", "terran_gen"):
            return False
        alive = [unit for unit in (self.agents if ally else self.enemies).values() if unit.health > 0.0]
        medivacs = sum(unit.unit_type == UNIT_TYPES["medivac"].type_id for unit in alive)
        return medivacs == len(alive) and (ally or len(alive) == 1 or self.map_type != "MMM")

    def get_unit_by_id(self, a_id: int) -> UnitView:
        """Return the unit of an agent."""
        return view_of(self.skirmish.units[0, a_id], self.skirmish.types_in(0)[a_id], a_id, ally=True)

    def get_unit_types(self) -> list[int]:
        """Return the type numbers of all units, allies first."""
        return [kind.type_id for kind in self.skirmish.types_in(0)]

    def get_unit_type_id(self, unit: UnitView, ally: bool) -> int:
        """Return the index of a unit's type in the one-hot columns; 0 on maps without such columns."""
        names = self._scenario.ally_types if ally else self._scenario.enemy_types
        return next((bit for bit, kind in enumerate(names) if kind.type_id == unit.unit_type), 0)

    def get_state_dict(self) -> dict[str, Any]:
        """Return the state's parts: `allies` (A, …), `enemies` (E, …), and `last_action` and `timestep` if enabled."""
        sides: dict[str, Any] = {}
        units, kinds = self.skirmish.units[0], self.skirmish.kinds[0]
        draw = self._scenario.draw
        for name, side, bits in (
            ("allies", slice(self.n_agents), self.shield_bits_ally),
            ("enemies", slice(self.n_agents, None), self.shield_bits_enemy),
        ):
            unit, kind = units[side], kinds[side]
            columns = [unit["health"] / kind["health"], (unit["x"] - MIDDLE) / CELLS, (unit["y"] - MIDDLE) / CELLS]
            if name == "allies":
                cooldown = np.maximum(unit["cooldown"], 0.0) / kind["full_cooldown"]
                columns.insert(1, np.where(kind["healing"] > 0.0, unit["energy"] / FULL_ENERGY, cooldown))
                if draw is not None and draw.health is not None:
                    columns[0] = (columns[0] - kind["health_level"]) / (1.0 - kind["health_level"])
            if bits:
                columns.append(unit["shield"] / kind["shield"])
            if name == "allies":
                columns += [kind[number] for number in self._scenario.capabilities]
                columns += [unit["look_x"], unit["look_y"]] if self._scenario.looks else []
            types = kind["type_bit"][:, None] == np.arange(self.unit_type_bits)
            alive = unit["health"][:, None] > 0.0
            sides[name] = np.where(alive, np.column_stack([*columns, types]), 0.0)
        if self.state_last_action:
            sides["last_action"] = self.last_action
        if self.state_timestep_number:
            sides["timestep"] = int(self.skirmish.battles["steps"][0]) / self.episode_limit
        return sides

    def get_visibility_matrix(self) -> NDArray[np.bool_]:
        """Return which agent sees which unit, (A, A + E); an agent does not see itself.

        Of two agents, the sight of the lower-numbered one decides for both, as in SMACv2. In SMAC, all see equally far.
        """
        units, n = self.skirmish.units[0], self.n_agents
        dx = units["x"][:n, None] - units["x"][None, :]
        dy = units["y"][:n, None] - units["y"][None, :]
        alive = units["health"] > 0.0
        sight = self.skirmish.kinds["sight"][0, :n]
        seen = (np.sqrt(dx * dx + dy * dy) < sight[:, None]) & alive[:n, None] & alive[None, :]
        above = np.triu(seen[:, :n], 1)
        seen[:, :n] = above | above.T
        return np.asarray(seen, dtype=np.bool_)

    def unit_shoot_range(self, agent_id: int) -> float:
        """Return the greatest distance at which an agent may be ordered to attack, in cells."""
        return float(self.skirmish.kinds["shoot"][0, agent_id])

    def unit_sight_range(self, agent_id: int) -> float:
        """Return the distance below which an agent sees other units, in cells."""
        return float(self.skirmish.kinds["sight"][0, agent_id])

    def unit_max_cooldown(self, unit: UnitView) -> float:
        """Return the divisor of a unit's cooldown in the state; for a Medivac that of its energy."""
        return self._type(unit).full_cooldown

    def unit_max_shield(self, unit: UnitView) -> float:
        """Return the divisor of a unit's shield."""
        return self._type(unit).shield

    @staticmethod
    def distance(x1: float, y1: float, x2: float, y2: float) -> float:
        """Return the distance between two points."""
        return hypot(x2 - x1, y2 - y1)

    def can_move(self, unit: UnitView, direction: int) -> bool:
        """Return whether the next cell in a direction (0 north, 1 south, 2 east, 3 west) can be walked on."""
        probe = self._move_amount / 2.0
        dx, dy = ((0.0, probe), (0.0, -probe), (probe, 0.0), (-probe, 0.0))[direction]
        x, y = int(unit.pos.x + dx), int(unit.pos.y + dy)
        return self.check_bounds(x, y) and bool(self.pathing_grid[x, y])

    def check_bounds(self, x: float, y: float) -> bool:
        """Return whether a point lies on the map."""
        return 0 <= x < self.map_x and 0 <= y < self.map_y

    def get_surrounding_points(self, unit: UnitView, include_self: bool = False) -> list[tuple[int, int]]:
        """Return the cells around a unit: north, south, east, west, then NE, SW, SE, NW; its own last if wanted."""
        x, y = int(unit.pos.x), int(unit.pos.y)
        near, far = int(self._move_amount), int(2 * self._move_amount)
        offsets = [(0, far), (0, -far), (far, 0), (-far, 0), (near, near), (-near, -near), (near, -near), (-near, near)]
        return [(x + dx, y + dy) for dx, dy in [*offsets, *([(0, 0)] if include_self else [])]]

    def get_surrounding_pathing(self, unit: UnitView) -> list[float]:
        """Return 1 for each cell around a unit that can be walked on or is off the map, 0 for the others."""
        points = self.get_surrounding_points(unit)
        return [float(self.pathing_grid[point]) if self.check_bounds(*point) else 1.0 for point in points]

    def get_surrounding_height(self, unit: UnitView) -> list[float]:
        """Return the height of each of the cells around a unit and of its own; 1 for those off the map."""
        points = self.get_surrounding_points(unit, include_self=True)
        return [float(self.terrain_height[point]) if self.check_bounds(*point) else 1.0 for point in points]

    def _type(self, unit: UnitView) -> UnitType:
        return next(kind for kind in self.skirmish.types_in(0) if kind.type_id == unit.unit_type)
