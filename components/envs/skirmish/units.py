"""Unit types: health, weapons and movement, in both published sets of weapon data. `units.toml` holds the numbers."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

TICKS_PER_SECOND = 16.0

Ruleset = Literal["liberty", "lotv"]

Layer = Literal["ground", "giant", "air"]
"""Only units of the same layer collide; giants step over ground units."""


@dataclass(frozen=True, slots=True)
class Weapon:
    """The weapon of a unit. Distances run from edge to edge, times are in Normal seconds."""

    damage: float
    """Damage of one hit, before armour."""
    range: float
    scan: float
    """Range in which an idle unit looks for an enemy."""
    period: float
    """Time from shot to shot, before the random delay."""
    damage_point: float
    """Time from the start of aiming to the shot."""
    armored_bonus: float = 0.0
    hits: int = 1
    hit_gap: float = 0.0
    """Time between the hits of one shot."""
    missile_speed: float = 0.0
    """Cells per second; zero for shots that hit at once."""
    light_bonus: float = 0.0
    hits_air: bool = False
    sweep: float = 0.0
    """Half the length of the line, perpendicular to the shot, along which two beams do damage; zero for others."""
    burst: float = 0.0
    """The radius in which a unit does damage when it dies, which is also how it attacks; zero for other units."""


@dataclass(frozen=True, slots=True)
class UnitType:
    """One row of the unit table."""

    name: str
    race: Literal["terran", "protoss", "zerg"]
    type_id: int
    """The game's number for the type."""
    health: float
    shield: float
    armour: float
    armored: bool
    radius: float
    """The size that counts for ranges."""
    separation: float
    """The size that counts for collisions."""
    speed: float
    weapon: Weapon
    sight: float
    """Sight range from the unit's centre; agents have it in scenarios with `unit_ranges`."""
    full_cooldown: float
    """SMAC's divisor of the remaining cooldown, in ticks. It is from SMAC's own table, not the weapon's period.

    For healers, it is the divisor of their energy.
    """
    light: bool = False
    biological: bool = False
    layer: Layer = "ground"
    acceleration: float = 0.0
    """Acceleration in cells/s²; zero for units that reach full speed at once."""
    regeneration: float = 0.0
    """Health per second."""
    healing: float = 0.0
    """Health per second that it gives. Its weapon's range and scan are those of the healing beam; it does no damage."""


_TABLES = tomllib.loads(Path(__file__).with_name("units.toml").read_text(encoding="utf-8"))


def _types_of(ruleset: Ruleset) -> dict[str, UnitType]:
    """Return all unit types of a ruleset. Tables other than those of "liberty" hold only the differences."""
    types = {}
    for name, table in _TABLES["liberty"].items():
        changed = _TABLES[ruleset].get(name, {})
        weapon = Weapon(**(table["weapon"] | changed.get("weapon", {})))
        types[name] = UnitType(**(table | changed | {"name": name.replace("_", " "), "weapon": weapon}))
    return types


UNIT_TYPES = _types_of("liberty")
"""Unit types by their names in scenario files."""

_ARMED = {"liberty": UNIT_TYPES, "lotv": _types_of("lotv")}


def unit_named(name: str) -> UnitType:
    """Return the unit type of this name in scenario files.

    Raises:
        ValueError: the name is unknown; the message lists the known ones.
    """
    try:
        return UNIT_TYPES[name]
    except KeyError:
        raise ValueError(f"there is no unit {name!r}; there are {', '.join(UNIT_TYPES)}") from None


def armed(unit: UnitType, ruleset: Ruleset) -> UnitType:
    """Return a unit type with the data of a ruleset: the maps' own ("liberty"), or later multiplayer data ("lotv")."""
    if ruleset not in _ARMED:
        raise ValueError(f"ruleset {ruleset!r} is unknown; there are 'liberty' and 'lotv'")
    return _ARMED[ruleset][unit.name.replace(" ", "_")]
