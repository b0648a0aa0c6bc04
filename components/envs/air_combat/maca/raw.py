"""MaCA's raw observation of a side: dictionaries with the key spellings of its code."""

from math import atan2, degrees
from typing import Any

from components.envs.air_combat.battles import AirBattles
from components.envs.air_combat.kernel.constants import ATTACK, COURSE, JAMMER, RADAR

Raw = dict[str, Any]
"""`detector_obs_list`, `fighter_obs_list` and `joint_obs_dict`."""


def raw_observation(battles: AirBattles, first: int) -> Raw:
    """Return the observation of battle 0 for the side whose first unit is `first`; it shares no memory with `battles`.

    The positions of friends, and of enemies that a radar sees, are exact. Lists of sensed enemies contain only living
    ones; those of a destroyed unit are empty.
    """
    return _Side(battles, first).observation()


class _Side:
    """The arrays of a battle, seen from a side: `first` is its first unit, `facing` the first of the other side."""

    def __init__(self, battles: AirBattles, first: int) -> None:
        self.units, self.orders = battles.units[0], battles.orders[0]
        self.sees, self.hears, self.bearing = battles.sees[0], battles.hears[0], battles.bearing[0]
        self.missiles = battles.missiles[0, : int(battles.battles["flying"][0])]
        self.fighters = [unit.kind == "fighter" for unit in battles.scenario.units]
        red, count = battles.n_agents, len(self.fighters)
        self.first, self.facing = first, red - first
        self.own, self.enemies = (range(red), range(red, count)) if first == 0 else (range(red, count), range(red))

    def observation(self) -> Raw:
        described = {i: self.unit(i) for i in self.own}
        return {
            "detector_obs_list": [each for i, each in described.items() if not self.fighters[i]],
            "fighter_obs_list": [each for i, each in described.items() if self.fighters[i]],
            "joint_obs_dict": {
                "strike_list": [self.strike(missile) for missile in self.missiles if missile["attacker"] in self.own],
                "passive_detection_enemy_list": [
                    self.enemy(j) | {"pos_x": float(self.units["fix_x"][j]), "pos_y": float(self.units["fix_y"][j])}
                    for j in self.enemies
                    if self.units["alive"][j] and self.units["fixed"][j]
                ],
                "alive_status_enemy_list": [bool(self.units["alive"][j]) for j in self.enemies],
            },
        }

    def unit(self, i: int) -> dict[str, Any]:
        """Return the observation of unit i of this side."""
        unit, order = self.units[i], self.orders[i]
        observed: dict[str, Any] = {
            "id": i - self.first + 1,
            "alive": bool(unit["alive"]),
            "pos_x": float(unit["x"]),
            "pos_y": float(unit["y"]),
            "course": int(unit["course"]),
            "r_iswork": bool(unit["radar"] > 0),
            "r_fre_point": int(unit["radar"]),
            "r_visible_list": [
                self.enemy(j) | {"pos_x": float(self.units["x"][j]), "pos_y": float(self.units["y"][j])}
                for j in self.sensed(i, self.sees)
            ],
            "last_reward": float(unit["reward"]),
            "last_action": {
                "course": int(order[COURSE]),
                "r_iswork": bool(order[RADAR] > 0),
                "r_fre_point": int(order[RADAR]),
            },
        }
        if self.fighters[i]:
            observed |= self.weapons(i)
            observed["last_action"] |= self.last_weapons(order)
        return observed

    def weapons(self, i: int) -> dict[str, Any]:
        """Return the part of the observation that only fighters have: jammer, receiver and missiles."""
        unit = self.units[i]
        strikes = [self.strike(missile) for missile in self.missiles if missile["attacker"] == i]
        targets = sorted({int(missile["target"]) for missile in self.missiles if missile["attacker"] == i})
        return {
            "j_iswork": bool(unit["jammer"] > 0),
            "j_fre_point": int(unit["jammer"]),
            "j_recv_list": [
                self.enemy(j)
                | {
                    "direction": degrees(atan2(self.bearing[i, j, 1], self.bearing[i, j, 0])) % 360.0,
                    "r_fp": int(self.units["radar"][j]),
                }
                for j in self.sensed(i, self.hears)
            ],
            "l_missile_left": int(unit["long_left"]),
            "s_missile_left": int(unit["medium_left"]),
            "striking_list": strikes,
            "striking_dict_list": [
                {
                    "target_id": j - self.facing + 1,
                    "pos_x": float(self.units["last_x"][j]),
                    "pos_y": float(self.units["last_y"][j]),
                    "type": int(self.fighters[j]),
                }
                for j in targets
            ],
        }

    def last_weapons(self, order: Any) -> dict[str, Any]:
        attack, n_enemies = int(order[ATTACK]), len(self.enemies)
        fires = 0 < attack <= 2 * n_enemies
        return {
            "j_iswork": bool(order[JAMMER] > 0),
            "j_fre_point": int(order[JAMMER]),
            "hit_target": (attack - 1) % n_enemies + 1 if fires else 0,
            "missle_type": 1 + (attack > n_enemies) if fires else 0,
        }

    def sensed(self, i: int, by: Any) -> list[int]:
        """Return the living enemies that unit i senses; `by` (N, N) is `sees` or `hears`."""
        if not self.units["alive"][i]:
            return []
        return [j for j in self.enemies if by[i, j] and self.units["alive"][j]]

    def enemy(self, j: int) -> dict[str, Any]:
        return {"id": j - self.facing + 1, "type": int(self.fighters[j])}

    def strike(self, missile: Any) -> dict[str, Any]:
        """Return the observation of a missile in flight of this side."""
        return {
            "attacker_id": int(missile["attacker"]) - self.first + 1,
            "target_id": int(missile["target"]) - self.facing + 1,
            "missile_type": 2 if missile["medium"] else 1,
            "information_source_type": int(missile["source"]),
            "step_count": int(missile["steps"]),
            "op_count": int(missile["observed"]),
            "del_ind": False,
        }
