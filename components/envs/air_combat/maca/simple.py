"""MaCA's observation `simple`: images of the map, and a few numbers of each unit."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.envs.air_combat.maca.raw import Raw

REDUCED = 10
"""Units of the map per pixel."""
ITSELF = 255
"""The mark of the unit itself; a friend's is 1 for a detector and 2 for a fighter."""

Screen = NDArray[np.int32]
"""(size_y / 10, size_x / 10, channels), row first."""


def _mark(image: NDArray[np.int32], unit: dict[str, Any], value: int) -> None:
    """Write a square of 3 by 3 pixels around a unit, cut off at the edges."""
    row, column = int(unit["pos_y"] / REDUCED), int(unit["pos_x"] / REDUCED)
    image[max(row - 1, 0) : row + 2, max(column - 1, 0) : column + 2] = value


def _mark_enemies(screen: Screen, ids: int, enemies: Iterable[dict[str, Any]]) -> None:
    """Write numbers into the channel `ids`, and types + 1 into the next; later enemies overwrite earlier ones."""
    for enemy in enemies:
        _mark(screen[:, :, ids], enemy, enemy["id"])
        _mark(screen[:, :, ids + 1], enemy, enemy["type"] + 1)


class ObsConstruct:
    """Makes a dictionary from a raw observation: lists `detector` and `fighter`, with one dictionary for each unit.

    `screen` is int32 (size_y / 10, size_x / 10, 5): numbers and types + 1 of enemies that the unit's own radar sees;
    friends; numbers and types + 1 of enemies that the side knows. `info` is int32: the course of a detector; the
    course, long missiles and medium missiles of a fighter; all -1 once the unit is destroyed. `alive` is a bool.

    Args:
        size_x: of the map.
        size_y: of the map.
        detector_num: detectors of the side.
        fighter_num: fighters of the side.
    """

    def __init__(self, size_x: float, size_y: float, detector_num: int, fighter_num: int) -> None:
        self.shape = (int(size_y / REDUCED), int(size_x / REDUCED))

    def obs_construct(self, obs_raw_dict: Raw) -> dict[str, list[dict[str, Any]]]:
        """Return the observation of a side from its raw observation."""
        detectors, fighters = obs_raw_dict["detector_obs_list"], obs_raw_dict["fighter_obs_list"]
        common = np.zeros((*self.shape, 5), np.int32)
        for mark, units in enumerate((detectors, fighters), 1):
            for unit in units:
                if unit["alive"]:
                    _mark(common[:, :, 2], unit, mark)
        _mark_enemies(common, 3, obs_raw_dict["joint_obs_dict"]["passive_detection_enemy_list"])
        for unit in (*detectors, *fighters):
            _mark_enemies(common, 3, unit["r_visible_list"])
        return {
            "detector": [self._of(unit, ("course",), common) for unit in detectors],
            "fighter": [self._of(unit, ("course", "l_missile_left", "s_missile_left"), common) for unit in fighters],
        }

    def _of(self, unit: dict[str, Any], told: tuple[str, ...], common: Screen) -> dict[str, Any]:
        screen, info = common.copy(), np.full(len(told), -1, np.int32)
        if unit["alive"]:
            _mark_enemies(screen, 0, unit["r_visible_list"])
            _mark(screen[:, :, 2], unit, ITSELF)
            info[:] = [unit[name] for name in told]
        else:
            screen[:, :, :3] = 0
        return {"info": info, "screen": screen, "alive": bool(unit["alive"])}
