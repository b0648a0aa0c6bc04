"""MaCA's arrays of actions as orders of the simulator."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.envs.air_combat.kernel.constants import ATTACK, COURSE, JAMMER, RADAR
from components.envs.air_combat.scenarios import Scenario, Unit

COLUMNS = {"detector": ("course", "radar"), "fighter": ("course", "radar", "jammer", "attack")}
UNLIMITED = 2**31 - 1
"""The largest attack. An attack that names no enemy is invalid and gets the reward `invalid_attack`, as in MaCA."""


def orders_of(action: Any, units: list[Unit], alive: NDArray[np.bool_], scenario: Scenario, whose: str) -> NDArray[Any]:
    """Return the orders (n, 4) of units of one kind.

    Rows of destroyed units may hold anything. Courses are taken modulo 360, and fractions of a degree are cut off.

    Args:
        action: (n, 2) of detectors: course, radar; (n, 4) of fighters: course, radar, jammer, attack.
        units: all of one kind.
        alive: (n,).
        scenario: to which the units belong.
        whose: name of the action in errors.

    Raises:
        ValueError: an array of another shape or type, or a number out of its range.
    """
    orders = np.zeros((len(units), 4), np.int64)
    if not units:
        return orders  # without checks of `action`: MaCA's own agents give an empty list
    columns, given = COLUMNS[units[0].kind], np.asarray(action)
    if given.shape != (len(units), len(columns)) or given.dtype.kind not in "iuf":
        shape = (len(units), len(columns))
        raise ValueError(f"{whose} is {given.dtype} {given.shape}, must be numbers {shape}: {', '.join(columns)}")
    for n, unit in enumerate(units):
        if not alive[n]:
            continue
        for column, value in zip(columns, given[n].tolist(), strict=True):
            if column == "course":
                if not np.isfinite(value):
                    raise ValueError(f"{whose}, unit {n}: course is {value}, must be degrees")
                orders[n, COURSE] = int(value) % 360
                continue
            most = _most(column, unit, scenario)
            if value != value // 1 or not 0 <= value <= most:
                allowed = f"0 to {most}" if most < UNLIMITED else "0 or more"
                raise ValueError(f"{whose}, unit {n}: {column} is {value}, must be an integer, {allowed}")
            orders[n, {"radar": RADAR, "jammer": JAMMER, "attack": ATTACK}[column]] = int(value)
    return orders


def _most(column: str, unit: Unit, scenario: Scenario) -> int:
    if column == "radar":
        return scenario.radars[unit.radar].points
    if column == "attack":
        return UNLIMITED
    return 0 if unit.jammer is None else scenario.jamming.points[unit.jammer] + 1
