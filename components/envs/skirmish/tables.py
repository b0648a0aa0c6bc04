"""The constant records that the kernel reads, made from a scenario and its options."""

from dataclasses import asdict
from math import cos, pi, sin, sqrt, tan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .kernel.constants import AIR, BEAM_TICKS, GIANT, GROUND, LANES, SWEEP_TICKS
from .options import EDITIONS, Features, Rewards, shield_bit
from .records import KIND, RULES, UNIT
from .scenarios import Group, Scenario
from .terrain import MAP_SIZE, Terrain
from .units import TICKS_PER_SECOND, Ruleset, UnitType, armed

SPAWN_GAP = 0.02

YIELDING, LARGE_MELEE_YIELDING = 0.25, 0.16
"""The share of an overlap by which a fighting unit gives way to a walking friend; it does not give way to enemies.

The second is that of large melee units. Both are fitted to the game: to how long battles of marines last, and to how
many zerglings of a swarm zealots kill under random play. With too small a share, the rear ranks of marines find no
place to shoot from, and zerglings block each other. With too large a share, all zerglings attack at once."""
SMALL = 0.4
"""Radius in cells; below it, a melee unit is small."""
MELEE_RANGE = 1.0

SIGHT = 9.0  # of every unit, centre to centre: a rule of SMAC, not of the game
SHOOT = 6.0  # likewise: an attack may be ordered up to this distance, whatever the weapon's range

REACTIONS = (32, 16, 8, 1)
"""Ticks from one choice of the enemies' targets to the next, by difficulty from 1; the last for all higher ones."""

LEAST_SCAN = 5.0
SCAN_SLOP: dict[Ruleset, float] = {"liberty": 1.0, "lotv": 0.5}
"""Cells added to the scan range of units other than healers, fitted to how long random play lasts in the game.

Without it, armies of 25 would miss units in a corner, which hardly ever happens in the game. With it, marines notice
others at 6 cells in both rulesets."""

LAYERS = {"ground": GROUND, "giant": GIANT, "air": AIR}

# The six neighbours of a place in a hexagonal grid, in order round it, in units of the spacing.
_HEXAGON = [(1.0, 0.0), (0.5, sqrt(0.75)), (-0.5, sqrt(0.75)), (-1.0, 0.0), (-0.5, -sqrt(0.75)), (0.5, -sqrt(0.75))]


def hexagonal_spiral(count: int, spacing: float) -> list[tuple[float, float]]:
    """Return `count` places round the origin, the first on it, each at least `spacing` from all others.

    The game moves units that are created on one point to the next free places; its exact choice is not known.
    """
    places = [(0.0, 0.0)]
    ring = 0
    while len(places) < count:
        ring += 1
        x, y = ring * _HEXAGON[4][0], ring * _HEXAGON[4][1]
        for dx, dy in _HEXAGON:
            for _ in range(ring):
                places.append((x, y))
                x, y = x + dx, y + dy
    return [(x * spacing, y * spacing) for x, y in places[:count]]


def fresh_table() -> NDArray[Any]:
    """Return (1,) of `UNIT`: a unit before its first step, without what depends on its kind, side and place."""
    fresh = np.zeros(1, dtype=UNIT)
    for field in ("stop", "target", "attacker", "hit_target", "last_action", "finder", "blind_to"):
        fresh[field] = -1
    fresh["look_x"] = 1.0
    return fresh


def kinds_table(scenario: Scenario, ruleset: Ruleset) -> NDArray[Any]:
    """Return (N,) of `KIND`: type and starting place of each unit, allies first; zeros where armies are drawn.

    Raises:
        ValueError: there is no room for a group at its starting point.
    """
    units = scenario.allies + scenario.enemies
    kinds = np.zeros(len(units), dtype=KIND)
    if scenario.draw is not None:
        return kinds
    rows = {unit.name: row for row, unit in enumerate(_types(scenario))}
    for index, unit in enumerate(units):
        _describe(kinds[index], unit, ruleset, rows[unit.name], scenario)
    allies = len(scenario.allies)
    _number_types(kinds[:allies], scenario.allies, scenario.ally_types)
    _number_types(kinds[allies:], scenario.enemies, scenario.enemy_types)
    _place(kinds[:allies], scenario.allies, scenario.ally_groups, scenario.terrain, 1.0)
    _place(kinds[allies:], scenario.enemies, scenario.enemy_groups, scenario.terrain, -1.0)
    return kinds


def catalogue_table(scenario: Scenario, ruleset: Ruleset) -> NDArray[Any]:
    """Return (T,) of `KIND`: the types that armies are drawn from, in the order of type columns; (0,) if none are."""
    if scenario.draw is None:
        return np.zeros(0, dtype=KIND)
    draw = scenario.draw
    catalogue = np.zeros(len(draw.types), dtype=KIND)
    for row, unit in enumerate(draw.types):
        kind = catalogue[row]
        _describe(kind, unit, ruleset, row, scenario)
        kind["weight"], kind["never_alone"] = draw.weights[row], unit in draw.never_alone
        kind["type_bit"], kind["attack_chance"] = row, 1.0
        kind["rank"] = sorted(unit.name for unit in draw.types).index(unit.name)
    return catalogue


def spiral_table(scenario: Scenario) -> NDArray[np.float64]:
    """Return (N, 2): the places of drawn units that start on one point, relative to it."""
    units = scenario.draw.types if scenario.draw else scenario.allies
    spacing = 2.0 * max(unit.separation for unit in units) + SPAWN_GAP
    return np.array(hexagonal_spiral(len(scenario.allies) + len(scenario.enemies), spacing))


def places_table(scenario: Scenario) -> NDArray[np.float64]:
    """Return (6, P), for the kernel to write in: a column for each unit, as `kernel.vicinity` reads it."""
    units = len(scenario.allies) + len(scenario.enemies)
    return np.full((6, -(-units // LANES) * LANES), np.nan)


def _types(scenario: Scenario) -> tuple[UnitType, ...]:
    """Return all types that may fight, in the order of rows of the table of damage."""
    return scenario.draw.types if scenario.draw else tuple(dict.fromkeys(scenario.allies + scenario.enemies))


def _describe(kind: Any, unit: UnitType, ruleset: Ruleset, row: int, scenario: Scenario) -> None:
    """Write the properties of a unit type, with the ruleset's weapon, into a record."""
    unit = armed(unit, ruleset)
    weapon = unit.weapon
    kind["type_row"] = row
    kind["sight"], kind["shoot"] = SIGHT, SHOOT
    if scenario.unit_ranges:
        kind["sight"] = unit.sight
        kind["shoot"] = max(armed(unit, "lotv").weapon.range, scenario.least_shoot)
    kind["health"], kind["shield"], kind["armour"] = unit.health, unit.shield, unit.armour
    kind["radius"], kind["separation"] = unit.radius, unit.separation
    is_large_melee = weapon.range < MELEE_RANGE and unit.radius >= SMALL
    kind["yielding"] = LARGE_MELEE_YIELDING if is_large_melee else YIELDING
    kind["speed"] = unit.speed / TICKS_PER_SECOND
    kind["acceleration"] = unit.acceleration / TICKS_PER_SECOND**2
    kind["layer"] = LAYERS[unit.layer]
    kind["hits_air"] = weapon.hits_air
    kind["regeneration"] = unit.regeneration / TICKS_PER_SECOND
    kind["healing"], kind["biological"] = unit.healing / TICKS_PER_SECOND, unit.biological
    kind["range"] = weapon.range
    kind["scan"] = weapon.scan if unit.healing else max(LEAST_SCAN, weapon.scan) + SCAN_SLOP[ruleset]
    kind["period"] = weapon.period * TICKS_PER_SECOND
    kind["damage_point"] = weapon.damage_point * TICKS_PER_SECOND
    kind["hits"], kind["hit_gap"] = weapon.hits, weapon.hit_gap * TICKS_PER_SECOND
    kind["missile_speed"] = weapon.missile_speed / TICKS_PER_SECOND
    kind["sweep"], kind["burst"] = weapon.sweep, weapon.burst
    if weapon.sweep:
        kind["hits"] = SWEEP_TICKS + 1  # one for each tick of the sweep, and one for the target
    kind["full_cooldown"] = unit.full_cooldown

    under_way = (weapon.hits - 1) * kind["hit_gap"]
    if weapon.missile_speed:
        under_way += (weapon.range + 1.0) / kind["missile_speed"]
    if weapon.sweep:
        under_way = BEAM_TICKS
    assert under_way + 2.0 < kind["period"] - 1.0, f"a {unit.name} would shoot before its last shot has landed"


def _number_types(kinds: NDArray[Any], units: tuple[UnitType, ...], types: tuple[UnitType, ...]) -> None:
    names = [unit.name for unit in dict.fromkeys(units)]
    bits = [unit.name for unit in types]
    kinds["rank"] = [names.index(unit.name) for unit in units]
    kinds["type_bit"] = [bits.index(unit.name) if bits else 0 for unit in units]


def swap_sides(kinds: NDArray[Any], scenario: Scenario) -> NDArray[Any]:
    """Return (K, N) of `KIND` with the enemies first; they get the type columns of allies, and the allies theirs."""
    allies = len(scenario.allies)
    swapped = np.concatenate([kinds[:, allies:], kinds[:, :allies]], axis=1)
    if scenario.draw is None:
        _number_types(swapped[0, : len(scenario.enemies)], scenario.enemies, scenario.ally_types)
        _number_types(swapped[0, len(scenario.enemies) :], scenario.allies, scenario.enemy_types)
    return swapped


def _place(
    kinds: NDArray[Any],
    units: tuple[UnitType, ...],
    groups: tuple[Group, ...],
    terrain: Terrain,
    mirror: float,
) -> None:
    walkable = terrain.walkable()
    first = 0
    for point, size in groups:
        last = first + size
        for layer in LAYERS:
            # Units of different layers do not collide, so they are created on the same point.
            members = [index for index in range(first, last) if units[index].layer == layer]
            spacing = 2.0 * max((units[index].separation for index in members), default=0.0) + SPAWN_GAP
            spiral = hexagonal_spiral(len(members) * (8 if terrain.parts else 1), spacing)
            places = [(point[0] + mirror * x, point[1] + mirror * y) for x, y in spiral]
            if terrain.parts:
                places = [place for place in places if _fits(place, spacing / 2.0, walkable)]
            if len(places) < len(members) or not walkable[int(point[0] - 1e-6), int(point[1] - 1e-6)]:
                raise ValueError(f"there is no room for {len(members)} units round {point}")
            for index, (x, y) in zip(members, places, strict=False):
                kinds["start_x"][index], kinds["start_y"][index] = x, y
        first = last
    assert first == len(units), "the groups of a side must take in all its units"


def _fits(place: tuple[float, float], margin: float, walkable: NDArray[np.bool_]) -> bool:
    x, y = place
    if not (margin <= x < MAP_SIZE - margin and margin <= y < MAP_SIZE - margin):
        return False
    return all(walkable[int(x + dx), int(y + dy)] for dx in (-margin, margin) for dy in (-margin, margin))


def damage_table(scenario: Scenario, ruleset: Ruleset) -> NDArray[np.float64]:
    """Return (T, T): the damage of one hit of the first type on the second, before armour."""
    units = [armed(unit, ruleset) for unit in _types(scenario)]
    return np.array(
        [
            [
                one.weapon.damage + one.weapon.armored_bonus * other.armored + one.weapon.light_bonus * other.light
                for other in units
            ]
            for one in units
        ]
    )


def rules_table(
    scenario: Scenario,
    *,
    features: Features,
    rewards: Rewards,
    start_jitter: float,
    step_mul: int,
    move_amount: float,
    difficulty: int,
    commanded: bool,
) -> NDArray[Any]:
    """Return (1,) of `RULES`."""
    units = _types(scenario)
    enemies = scenario.draw.types if scenario.draw else scenario.enemies
    attack, health = (scenario.draw.attack, scenario.draw.health) if scenario.draw else (None, None)
    mask_probability = scenario.draw.mask_probability if scenario.draw else None
    turn = 2.0 * pi / scenario.looks if scenario.looks else 0.0
    rules = np.zeros(1, dtype=RULES)
    # Where armies are drawn, the enemies do not march: they hunt.
    march = scenario.march or [place for place, _ in scenario.ally_groups[:1]] or [(0.0, 0.0)]
    values: dict[str, float] = {
        "allies": len(scenario.allies),
        "enemies": len(scenario.enemies),
        "actions": scenario.n_actions,
        "first_target": scenario.first_target,
        "ticks": step_mul,
        "limit": scenario.limit,
        "move_amount": move_amount,
        "west": scenario.terrain.west,
        "east": scenario.terrain.east,
        "south": scenario.terrain.south,
        "north": scenario.terrain.north,
        "carved": bool(scenario.terrain.parts),
        "march_x": march[0][0],
        "march_y": march[0][1],
        "march_dx": march[-1][0] - march[0][0],
        "march_dy": march[-1][1] - march[0][1],
        "bursts": any(unit.weapon.burst > 0.0 for unit in units),
        "drawn": scenario.draw is not None,
        "surrounded": scenario.draw.surrounded if scenario.draw else 0.0,
        "draws_chances": attack is not None,
        "chance_low": attack.low if attack else 0.0,
        "chance_high": attack.high if attack else 0.0,
        "hides_chances": attack is not None and not attack.observe,
        "draws_levels": health is not None,
        "level_low": health.low if health else 0.0,
        "level_high": health.high if health else 0.0,
        "hides_levels": health is not None and not health.observe,
        "draws_masks": mask_probability is not None,
        "mask_probability": 1.0 if mask_probability is None else mask_probability,
        "looks": scenario.looks,
        "turn_cos": cos(turn),
        "turn_sin": sin(turn),
        "cone_cos": cos(turn / 2.0),
        "cone_tan": tan(turn / 2.0),
        "cone_as_published": scenario.cone_as_published,
        "commanded": commanded,
        "reaction": REACTIONS[min(difficulty, len(REACTIONS)) - 1],
        "retaliates": difficulty >= 5,
        "switches": difficulty >= 6,
        "calls": difficulty >= 7,
        "hunts": scenario.hunts,
        "attack_one": scenario.attack_one,
        "regenerates": any(unit.regeneration > 0.0 for unit in units),
        "healers": any(unit.healing > 0.0 for unit in units),
        "crowd": sqrt(len(scenario.enemies)) * max(unit.separation for unit in enemies),
        "start_jitter": start_jitter,
        "type_bits": len(scenario.ally_types),
        "ally_shield": shield_bit(scenario, enemies=False),
        "enemy_shield": shield_bit(scenario, enemies=True),
        **asdict(features),
        "obs_own_health": features.obs_own_health or features.obs_all_health,
        "edition": EDITIONS.index(features.edition),
        "hides_types": scenario.draw is not None and not scenario.draw.observe,
        "obs_own_position": features.shows_own_position(scenario),
        **{f"reward_{name}": value for name, value in asdict(rewards).items()},
        "reward_divisor": rewards.divisor(scenario),
    }
    assert values.keys() == set(rules.dtype.names or ())
    for name, value in values.items():
        rules[name] = value
    return rules
