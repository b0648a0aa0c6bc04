"""Unit types: health, weapons and movement, in both published sets of weapon data.

Numbers are those of the game's own data files, per *Normal* second, of which one holds 16 game loops (ticks). The
"Faster" figures of strategy sites are 1.4 times higher because they count 22.4 loops to a second; mixing the two is
the classic mistake of re-implementations.
"""

from dataclasses import dataclass, replace
from typing import Literal

TICKS_PER_SECOND = 16.0

Ruleset = Literal["liberty", "lotv"]

Layer = Literal["ground", "giant", "air"]
"""Units of one layer are in each other's way; giants step over those on the ground."""

ZERG_REGENERATION = 0.2734


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
    """What SMAC divides the remaining cooldown by, in ticks. Not the weapon's period: SMAC's own table."""
    light: bool = False
    biological: bool = False
    layer: Layer = "ground"
    acceleration: float = 0.0
    """Acceleration in cells/s²; zero for units that reach full speed at once."""
    regeneration: float = 0.0
    """Health per second."""
    healing: float = 0.0
    """Health per second that it heals. Range and scan are those of the healing beam; it does no damage."""


MARINE = UnitType(
    name="marine",
    race="terran",
    type_id=48,
    health=45.0,
    shield=0.0,
    armour=0.0,
    armored=False,
    radius=0.375,
    separation=0.375,
    speed=2.25,
    weapon=Weapon(damage=6.0, range=5.0, scan=5.0, period=0.8608, damage_point=0.05, hits_air=True),
    sight=9.0,
    full_cooldown=15.0,
    light=True,
    biological=True,
)
STALKER = UnitType(
    name="stalker",
    race="protoss",
    type_id=74,
    health=80.0,
    shield=80.0,
    armour=1.0,
    armored=True,
    radius=0.625,
    separation=0.625,
    speed=2.953125,
    weapon=Weapon(
        damage=10.0,
        armored_bonus=4.0,
        range=6.0,
        scan=6.0,
        period=1.44,
        damage_point=0.167,
        missile_speed=18.75,
        hits_air=True,
    ),
    sight=10.0,
    full_cooldown=35.0,
)
ZEALOT = UnitType(
    name="zealot",
    race="protoss",
    type_id=73,
    health=100.0,
    shield=50.0,
    armour=1.0,
    armored=False,
    radius=0.5,
    separation=0.375,
    speed=2.25,
    weapon=Weapon(damage=8.0, hits=2, hit_gap=0.28, range=0.1, scan=5.0, period=1.2, damage_point=0.0),
    sight=9.0,
    full_cooldown=22.0,
    light=True,
    biological=True,
)
MARAUDER = UnitType(
    name="marauder",
    race="terran",
    type_id=51,
    health=125.0,
    shield=0.0,
    armour=1.0,
    armored=True,
    radius=0.5625,
    separation=0.5,
    speed=2.25,
    weapon=Weapon(
        damage=10.0, armored_bonus=10.0, range=6.0, scan=6.0, period=1.5, damage_point=0.0, missile_speed=20.0
    ),
    sight=10.0,
    full_cooldown=25.0,
    biological=True,
)
MEDIVAC = UnitType(
    name="medivac",
    race="terran",
    type_id=54,
    health=150.0,
    shield=0.0,
    armour=1.0,
    armored=True,
    radius=0.75,
    separation=0.75,
    speed=2.75,
    weapon=Weapon(damage=0.0, range=4.0, scan=6.0, period=1.0, damage_point=0.0),
    sight=11.0,
    full_cooldown=1.0,
    layer="air",
    acceleration=2.3125,
    healing=9.0,
)
COLOSSUS = UnitType(
    name="colossus",
    race="protoss",
    type_id=4,
    health=200.0,
    shield=150.0,
    armour=1.0,
    armored=True,
    radius=1.0,
    separation=0.75,
    speed=2.25,
    weapon=Weapon(damage=20.0, range=6.0, scan=6.0, period=2.2, damage_point=0.083, sweep=1.25),
    sight=10.0,
    full_cooldown=24.0,
    layer="giant",
)
HYDRALISK = UnitType(
    name="hydralisk",
    race="zerg",
    type_id=107,
    health=80.0,
    shield=0.0,
    armour=0.0,
    armored=False,
    radius=0.625,
    separation=0.5,
    speed=2.25,
    weapon=Weapon(damage=12.0, range=5.0, scan=5.0, period=0.83, damage_point=0.208, missile_speed=40.0, hits_air=True),
    sight=9.0,
    full_cooldown=10.0,
    light=True,
    biological=True,
    regeneration=ZERG_REGENERATION,
)

ZERGLING = UnitType(
    name="zergling",
    race="zerg",
    type_id=105,
    health=35.0,
    shield=0.0,
    armour=0.0,
    armored=False,
    radius=0.375,
    separation=0.375,
    speed=2.953125,
    weapon=Weapon(damage=5.0, range=0.1, scan=5.0, period=0.696, damage_point=0.167),
    sight=8.0,
    full_cooldown=11.0,
    light=True,
    biological=True,
    regeneration=ZERG_REGENERATION,
)
BANELING = UnitType(
    name="baneling",
    race="zerg",
    type_id=9,
    health=30.0,
    shield=0.0,
    armour=0.0,
    armored=False,
    radius=0.375,
    separation=0.375,
    speed=2.5,
    weapon=Weapon(damage=20.0, light_bonus=15.0, range=0.25, scan=5.0, period=0.8332, damage_point=0.0, burst=2.2),
    sight=8.0,
    full_cooldown=1.0,
    biological=True,
    regeneration=ZERG_REGENERATION,
)
SPINE_CRAWLER = UnitType(
    name="spine crawler",
    race="zerg",
    type_id=98,
    health=300.0,
    shield=0.0,
    armour=2.0,
    armored=True,
    radius=0.875,
    separation=0.875,
    speed=0.0,
    weapon=Weapon(damage=25.0, armored_bonus=5.0, range=7.0, scan=7.0, period=1.6, damage_point=0.333),
    sight=11.0,
    full_cooldown=1.0,
    biological=True,
    regeneration=ZERG_REGENERATION,
)

UNIT_TYPES = {
    unit.name.replace(" ", "_"): unit
    for unit in (
        MARINE,
        MARAUDER,
        MEDIVAC,
        STALKER,
        ZEALOT,
        COLOSSUS,
        ZERGLING,
        BANELING,
        HYDRALISK,
        SPINE_CRAWLER,
    )
}
"""By the names that scenario files use."""

_LOTV_WEAPONS = {
    SPINE_CRAWLER.name: replace(SPINE_CRAWLER.weapon, period=1.85),
    MARAUDER.name: replace(MARAUDER.weapon, scan=6.5),
    COLOSSUS.name: replace(COLOSSUS.weapon, damage=10.0, light_bonus=5.0, range=7.0, scan=7.5, period=1.5),
    HYDRALISK.name: replace(HYDRALISK.weapon, period=0.75, scan=5.5),
    MARINE.name: replace(MARINE.weapon, scan=5.5),
    STALKER.name: replace(STALKER.weapon, damage=13.0, armored_bonus=5.0, period=1.87, scan=6.5),
}


def armed(unit: UnitType, ruleset: Ruleset) -> UnitType:
    """The unit with the weapon of a ruleset: the maps' own ("liberty"), or the later multiplayer data ("lotv")."""
    if ruleset == "lotv":
        speed = 2.5 if unit.name == MEDIVAC.name else unit.speed
        return replace(unit, weapon=_LOTV_WEAPONS.get(unit.name, unit.weapon), speed=speed)
    if ruleset == "liberty":
        return unit
    raise ValueError(f"ruleset {ruleset!r} is unknown; there are 'liberty' and 'lotv'")
