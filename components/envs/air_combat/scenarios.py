"""Scenarios of air combat: units, radars, jammers, receivers, missiles, rules and rewards.

Distances are in units of the map, times in steps, angles in degrees, clockwise from the positive x axis; y points down.
The defaults are those of MaCA's documents where they give numbers, and a choice of this package where they do not.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import hypot
from typing import Literal

Band = Literal["L", "S", "X"]
BANDS: tuple[Band, ...] = ("L", "S", "X")
"""Radio bands, in the order of MaCA's numbers."""
Kind = Literal["detector", "fighter"]
KINDS: tuple[Kind, ...] = ("detector", "fighter")
"""Types of units, in the order of MaCA's numbers."""
MOST_UNITS = 64
"""Maximum number of units of a side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A unit as a scenario describes it."""

    kind: Kind
    speed: float
    """Distance per step."""
    radar: Band
    jammer: Band | None = None
    long_missiles: int = 0
    medium_missiles: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Radar:
    """Radars of one band."""

    range: float
    points: int
    """Frequency points, numbered from 1."""
    sector: float = 180.0
    """Largest angle between the course and a visible target; with 180, the radar sees in all directions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Jamming:
    """The effect of a jammer on radars of its band within `range` of it. Of several jammers, the strongest counts."""

    range: float = 200.0
    aimed: float = 0.4
    """Remaining share of a radar's range when its frequency point is jammed."""
    barrage: float = 0.7
    """Remaining share of a radar's range when the whole band is jammed."""
    points: Mapping[Band, int] = field(default_factory=lambda: {"L": 10, "S": 20, "X": 10})
    """Frequency points that a jammer can aim at, by band. MaCA's documents give the L band 10, and its radars 20."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """Passive receivers of fighters: they detect active radars of every band."""

    range: float = 300.0
    noise: float = 1.5
    """Largest error of a bearing, in degrees."""
    least_crossing: float = 5.0
    """Smallest angle, in degrees, between two bearings that give a position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Missile:
    """Missiles of one kind."""

    range: float
    """Largest distance to the target when the missile is fired."""
    speed: float = 12.0
    """Distance per step."""
    hit_near: float
    """Probability of a hit on a target that was next to the attacker."""
    hit_far: float
    """Probability of a hit on a target that was at the end of the range. It is linear in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Rules of a round."""

    max_steps: int = 5000
    """World steps after which a round ends."""
    attack_effect_delay: bool = True
    """Whether missiles take time to fly; otherwise an attack is decided at once."""
    hit_prob_enable: bool = True
    """Whether hits have a probability; otherwise every missile that arrives hits."""
    turn_rate: int = 360
    """Largest change of course in a step, in degrees."""
    random_pos: bool = False
    """Whether units start at random places in their side's strip, instead of in columns."""
    strip: tuple[float, float] = (50.0, 150.0)
    """Distances from a side's edge between which it starts. In columns, detectors start at the first distance, fighters
    at the second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewards:
    """MaCA's rewards, and when a sighting counts."""

    detector_sees_detector: float = 20.0
    detector_sees_fighter: float = 10.0
    fighter_sees_detector: float = 20.0
    fighter_sees_fighter: float = 10.0
    hit_detector: float = 100.0
    hit_fighter: float = 100.0
    miss_detector: float = 0.0
    miss_fighter: float = 0.0
    detector_destroyed: float = -100.0
    fighter_destroyed: float = -100.0
    valid_attack: float = 10.0
    invalid_attack: float = -10.0
    alive: float = 0.0
    total_win: float = 200.0
    win: float = 100.0
    draw: float = 0.0
    loss: float = -100.0
    total_loss: float = -200.0
    every_sighting: bool = False
    """Whether each step in which a radar sees a unit is rewarded. Otherwise only the first of the round is, because a
    side that earns more by seeing an enemy than by hitting it would keep it alive."""

    def decisive(self) -> "Rewards":
        """Return these without the rewards of sightings and attacks, which do not decide a round."""
        return replace(
            self,
            detector_sees_detector=0.0,
            detector_sees_fighter=0.0,
            fighter_sees_detector=0.0,
            fighter_sees_fighter=0.0,
            valid_attack=0.0,
            invalid_attack=0.0,
        )


def _default_radars() -> dict[Band, Radar]:
    return {
        "L": Radar(range=240.0, points=20),
        "S": Radar(range=180.0, points=20),
        "X": Radar(range=150.0, points=10, sector=60.0),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A map with two sides. Side 1 is red and starts on the left, side 2 is blue and starts on the right.

    Raises:
        ValueError: a side has no unit or too many, detectors do not come first, or values are inconsistent.
    """

    name: str
    red: tuple[Unit, ...]
    blue: tuple[Unit, ...]
    size: tuple[float, float] = (1000.0, 1000.0)
    radars: Mapping[Band, Radar] = field(default_factory=_default_radars)
    jamming: Jamming = Jamming()
    receiver: Receiver = Receiver()
    long_missile: Missile = Missile(range=120.0, hit_near=0.8, hit_far=0.5)
    medium_missile: Missile = Missile(range=50.0, hit_near=0.95, hit_far=0.7)
    rules: Rules = Rules()
    rewards: Rewards = Rewards()

    def __post_init__(self) -> None:
        for side, units in (("red", self.red), ("blue", self.blue)):
            if not 1 <= len(units) <= MOST_UNITS:
                raise ValueError(f"{side} has {len(units)} units, must have 1 to {MOST_UNITS}")
            kinds = [KINDS.index(unit.kind) for unit in units]
            if kinds != sorted(kinds):
                raise ValueError(f"{side}: detectors must come before fighters")
            for number, unit in enumerate(units, 1):
                armed = unit.jammer is not None or unit.long_missiles or unit.medium_missiles
                if unit.kind == "detector" and armed:
                    raise ValueError(f"{side}: unit {number} is a detector, and has neither jammer nor missiles")
        fastest = max(unit.speed for unit in self.red + self.blue)
        for name, missile in (("long", self.long_missile), ("medium", self.medium_missile)):
            if missile.speed <= fastest:
                raise ValueError(
                    f"missiles.{name}.speed is {missile.speed:g}, must be above {fastest:g}, the speed of a unit: "
                    "a missile could chase it for ever"
                )
        near, far = self.rules.strip
        if not 0.0 <= near <= far <= self.size[0] / 2:
            raise ValueError(f"rules.strip is [{near:g}, {far:g}], must ascend, from 0 to {self.size[0] / 2:g} at most")

    @property
    def units(self) -> tuple[Unit, ...]:
        """The units of both sides, red first."""
        return self.red + self.blue

    @property
    def diagonal(self) -> float:
        """The largest distance on the map."""
        return hypot(*self.size)
