"""The electromagnetic part of a step: jamming, radars, passive receivers, and what a side knows from them."""

from math import sqrt

from components.envs.air_combat.kernel.chance import draw
from components.envs.air_combat.kernel.compiling import compiled
from components.envs.air_combat.kernel.constants import COS, PASSIVE, SIN, Bools, Doubles, Record, Records


@compiled
def enemies_of(i: int, units: Records, rules: Record) -> tuple[int, int]:
    """Return the index of the first enemy of unit i, and the index after the last."""
    return (rules.red, len(units)) if i < rules.red else (0, rules.red)


@compiled
def jam_all(units: Records, battle: Record, kinds: Records, rules: Record) -> None:
    """Compute the range of each radar under the strongest jammer."""
    battle.jammed = 0
    for i in range(len(units)):
        unit = units[i]
        unit.reach = 0.0
        if not unit.alive or unit.radar == 0:
            continue
        left = 1.0
        first, last = enemies_of(i, units, rules)
        for j in range(first, last):
            jammer = units[j]
            if not jammer.alive or jammer.jammer == 0 or kinds[j].jammer_band != kinds[i].radar_band:
                continue
            dx, dy = jammer.x - unit.x, jammer.y - unit.y
            if dx * dx + dy * dy > rules.jamming_range * rules.jamming_range:
                continue
            if jammer.jammer > kinds[j].jammer_points:
                left = min(left, rules.barrage)
            elif jammer.jammer == unit.radar:
                left = min(left, rules.aimed)
        unit.reach = kinds[i].radar_range * left
        if left < 1.0:
            battle.jammed += 1


@compiled
def in_sector(unit: Record, sector_cos: float, dx: float, dy: float, distance: float) -> bool:
    """Return whether a point lies in the sector around a unit's course, of half the angle with this cosine."""
    return COS[unit.course] * dx + SIN[unit.course] * dy >= sector_cos * distance  # type: ignore[no-any-return]  # numba's


@compiled
def sighting(i: int, j: int, kinds: Records, rules: Record) -> float:
    """Return the reward of unit i for seeing unit j."""
    if kinds[i].fighter:
        return float(rules.fighter_sees_fighter if kinds[j].fighter else rules.fighter_sees_detector)
    return float(rules.detector_sees_fighter if kinds[j].fighter else rules.detector_sees_detector)


@compiled
def look_all(units: Records, kinds: Records, rules: Record, sees: Bools, sighted: Bools) -> None:
    """Find which units each radar sees, and reward sightings."""
    for i in range(len(units)):
        unit = units[i]
        reach2 = unit.reach * unit.reach
        first, last = enemies_of(i, units, rules)
        for j in range(first, last):
            sees[i, j] = False
            if unit.reach == 0.0 or not units[j].alive:
                continue
            dx, dy = units[j].x - unit.x, units[j].y - unit.y
            d2 = dx * dx + dy * dy
            if d2 > reach2 or not in_sector(unit, kinds[i].sector_cos, dx, dy, sqrt(d2)):
                continue
            sees[i, j] = True
            if rules.every_sighting or not sighted[i, j]:
                unit.reward += sighting(i, j, kinds, rules)
            sighted[i, j] = True


@compiled
def hear_all(units: Records, battle: Record, kinds: Records, rules: Record, hears: Bools, bearing: Doubles) -> None:
    """Find which radars each fighter's receiver hears, and their bearings.

    The error of a bearing is 2 atan(t) with t uniform, which is nearly uniform and needs no trigonometry: its cosine is
    (1 - t²) / (1 + t²), its sine 2t / (1 + t²).
    """
    range2 = rules.receiver_range * rules.receiver_range
    for i in range(len(units)):
        unit = units[i]
        first, last = enemies_of(i, units, rules)
        for j in range(first, last):
            hears[i, j] = False
            if not (unit.alive and kinds[i].fighter and units[j].alive and units[j].radar > 0):
                continue
            dx, dy = units[j].x - unit.x, units[j].y - unit.y
            d2 = dx * dx + dy * dy
            if d2 > range2 or d2 == 0.0:
                continue
            hears[i, j] = True
            t = rules.noise * (2.0 * draw(battle) - 1.0)
            c, s = (1.0 - t * t) / (1.0 + t * t), 2.0 * t / (1.0 + t * t)
            distance = sqrt(d2)
            bearing[i, j, 0] = (dx * c - dy * s) / distance
            bearing[i, j, 1] = (dx * s + dy * c) / distance


@compiled
def fix(j: int, units: Records, rules: Record, hears: Bools, bearing: Doubles) -> None:
    """Find where the receivers' bearings of unit j cross: the point with the least sum of squared distances to them.

    With u the direction of a bearing and r its receiver, this is the p with Σ(1 - u uᵀ) p = Σ(1 - u uᵀ) r. The
    determinant of the matrix is the sum of sin² of the angles between all pairs of bearings. There is no fix if it is
    too small, or if the point lies behind a receiver.
    """
    target = units[j]
    target.fixed = False
    first, last = enemies_of(j, units, rules)
    xx = xy = yy = px = py = 0.0
    for i in range(first, last):
        if hears[i, j]:
            ux, uy = bearing[i, j, 0], bearing[i, j, 1]
            a, b, c = 1.0 - ux * ux, -ux * uy, 1.0 - uy * uy
            xx += a
            xy += b
            yy += c
            px += a * units[i].x + b * units[i].y
            py += b * units[i].x + c * units[i].y
    determinant = xx * yy - xy * xy
    if determinant < rules.least_crossing:
        return
    x = (yy * px - xy * py) / determinant
    y = (xx * py - xy * px) / determinant
    for i in range(first, last):
        if hears[i, j] and (x - units[i].x) * bearing[i, j, 0] + (y - units[i].y) * bearing[i, j, 1] < 0.0:
            return
    target.fixed = True
    target.fix_x = min(max(x, 0.0), rules.size_x)
    target.fix_y = min(max(y, 0.0), rules.size_y)


@compiled
def share_all(
    units: Records, battle: Record, kinds: Records, rules: Record, sees: Bools, hears: Bools, bearing: Doubles
) -> None:
    """Combine what each side knows: units that a radar sees, or else that receivers fix."""
    for j in range(len(units)):
        target = units[j]
        target.known = False
        target.source = -1
        target.fixed = False
        if not target.alive:
            continue
        fix(j, units, rules, hears, bearing)
        first, last = enemies_of(j, units, rules)
        for i in range(first, last):
            if sees[i, j]:
                target.known = True
                target.source = kinds[i].source
                target.last_x = target.x
                target.last_y = target.y
                break
        if not target.known and target.fixed:
            target.known = True
            target.source = PASSIVE
            target.last_x = target.fix_x
            target.last_y = target.fix_y
        if target.known:
            target.last_step = battle.steps
