"""Unit types: health, weapons and movement, in both published sets of weapon data. `units.toml` holds the numbers."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

TICKS_PER_SECOND = 16.0

Ruleset = Literal["liberty", "lotv"]

Layer = Literal["ground", "giant", "air"]
"""Units of one layer are in each other's way; giants step over those on the ground."""


@dataclass(frozen=True, slots=True)
class Weapon:
    """How a unit hurts. Distances run from edge to edge, times are in Normal seconds."""

    damage: float
    """Of one hit, before armour."""
    range: float
    scan: float
    """Range in which an idle unit looks for an enemy."""
    period: float
    """From shot to shot, before the random delay."""
    damage_point: float
    """From taking aim to the shot."""
    armored_bonus: float = 0.0
    hits: int = 1
    hit_gap: float = 0.0
    """Between the hits of one shot."""
    missile_speed: float = 0.0
    """Cells per second; zero for what arrives at once."""
    light_bonus: float = 0.0
    hits_air: bool = False
    sweep: float = 0.0
    """Half the length of the line, across the direction of the shot, along which two beams hurt; zero for others."""
    burst: float = 0.0
    """How far round itself it hurts by dying, which is also how it attacks; zero for others."""


@dataclass(frozen=True, slots=True)
class UnitType:
    """One row of the unit table."""

    name: str
    race: Literal["terran", "protoss", "zerg"]
    type_id: int
    """The game's number for it."""
    health: float
    shield: float
    armour: float
    armored: bool
    radius: float
    """Its size for ranges."""
    separation: float
    """Its size for bumping into others."""
    speed: float
    weapon: Weapon
    sight: float
    """How far it sees, from its centre: what its agent does where scenarios go by units' own ranges."""
    full_cooldown: float
    """What SMAC divides the remaining cooldown by, in ticks. Not the weapon's period: SMAC's own table.

    For healers, what it divides their energy by.
    """
    light: bool = False
    biological: bool = False
    layer: Layer = "ground"
    acceleration: float = 0.0
    """Acceleration in cells/s²; zero for units that reach full speed at once."""
    regeneration: float = 0.0
    """Health per second."""
    healing: float = 0.0
    """Health per second that it heals. Range and scan are those of the healing beam; it does no damage."""


_TABLES = tomllib.loads(Path(__file__).with_name("units.toml").read_text(encoding="utf-8"))


def _types_of(ruleset: Ruleset) -> dict[str, UnitType]:
    """All unit types of a ruleset. Each table but that of "liberty" holds only what it changes."""
    types = {}
    for name, table in _TABLES["liberty"].items():
        changed = _TABLES[ruleset].get(name, {})
        weapon = Weapon(**(table["weapon"] | changed.get("weapon", {})))
        types[name] = UnitType(**(table | changed | {"name": name.replace("_", " "), "weapon": weapon}))
    return types


UNIT_TYPES = _types_of("liberty")
"""By the names that scenario files use."""

_ARMED = {"liberty": UNIT_TYPES, "lotv": _types_of("lotv")}


def unit_named(name: str) -> UnitType:
    """The unit that scenario files call so.

    Raises:
        ValueError: there is none; the message lists those there are.
    """
    try:
        return UNIT_TYPES[name]
    except KeyError:
        raise ValueError(f"there is no unit {name!r}; there are {', '.join(UNIT_TYPES)}") from None


def armed(unit: UnitType, ruleset: Ruleset) -> UnitType:
    """The unit with the weapon of a ruleset: the maps' own ("liberty"), or the later multiplayer data ("lotv")."""
    if ruleset not in _ARMED:
        raise ValueError(f"ruleset {ruleset!r} is unknown; there are 'liberty' and 'lotv'")
    return _ARMED[ruleset][unit.name.replace(" ", "_")]
