"""Scenarios of air combat in TOML files, and those of this package by name.

    name = "two on two"             # default: the name of the file
    size = [600.0, 400.0]

    [[red]]
    kind = "fighter"                # or "detector"
    count = 2
    speed = 2.0
    radar = "X"                     # its band: L, S or X
    jammer = "X"
    long_missiles = 2
    medium_missiles = 4

    [[blue]]
    kind = "fighter"
    count = 2
    speed = 2.0
    radar = "X"

    [radars.X]                      # omitted values have the defaults of `scenarios`
    range = 150.0
    points = 10
    sector = 60.0

`jamming`, `receiver`, `missiles.long`, `missiles.medium`, `rules` and `rewards` are tables with the fields of the
classes of these names in `scenarios`.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any

from components.envs.air_combat.map_file import SUFFIX, load_map
from components.envs.air_combat.scenarios import (
    BANDS,
    KINDS,
    MOST_UNITS,
    Jamming,
    Missile,
    Radar,
    Receiver,
    Rewards,
    Rules,
    Scenario,
    Unit,
)
from components.envs.skirmish.toml_checks import REQUIRED, Check, list_of, number, of_type, table_of

MAPS = Path(__file__).with_name("maps")
_FAR = 1e6


def _one_of(*choices: str) -> Check:
    def check(value: Any, where: str) -> str:
        if value not in choices:
            raise ValueError(f"{where} is {value!r}, must be one of {', '.join(choices)}")
        return str(value)

    return check


_COUNT = number(1, MOST_UNITS, whole=True)
_DISTANCE = number(0.0, _FAR)
_SHARE = number(0.0, 1.0)
_POINTS = number(1, 1000, whole=True)
_FLAG = of_type(bool, "true or false")
_SIGNED = number(-_FAR, _FAR)
_BAND = _one_of(*BANDS)


def _of_class(kind: type, **checks: Check) -> Check:
    """Return a check that turns a table into an instance of a dataclass, with the defaults of the class."""
    defaults = {each.name: REQUIRED if each.default is MISSING else each.default for each in fields(kind)}
    table = table_of(**{name: (check, defaults[name]) for name, check in checks.items()})
    return lambda value, where: kind(**table(value, where))


def _missile(default: Missile) -> Check:
    table = table_of(
        range=(number(0.0, _FAR, above=True), default.range),
        speed=(number(0.0, _FAR, above=True), default.speed),
        hit_near=(_SHARE, default.hit_near),
        hit_far=(_SHARE, default.hit_far),
    )
    return lambda value, where: Missile(**table(value, where))


def _jamming(value: Any, where: str) -> Jamming:
    usual = Jamming()
    points = table_of(**{band: (_POINTS, usual.points[band]) for band in BANDS})
    table = table_of(
        range=(_DISTANCE, usual.range),
        aimed=(_SHARE, usual.aimed),
        barrage=(_SHARE, usual.barrage),
        points=(points, usual.points),
    )
    return Jamming(**table(value, where))


def _strip(value: Any, where: str) -> tuple[float, float]:
    near, far = list_of(_DISTANCE, 2)(value, where)
    return near, far


def _size(value: Any, where: str) -> tuple[float, float]:
    width, height = list_of(number(1.0, _FAR), 2)(value, where)
    return width, height


_GROUP = table_of(
    kind=(_one_of(*KINDS), REQUIRED),
    count=(_COUNT, 1),
    speed=(_DISTANCE, REQUIRED),
    radar=(_BAND, REQUIRED),
    jammer=(_BAND, None),
    long_missiles=(number(0, 100, whole=True), 0),
    medium_missiles=(number(0, 100, whole=True), 0),
)


def _side(value: Any, where: str) -> tuple[Unit, ...]:
    units: list[Unit] = []
    for group in list_of(_GROUP)(value, where):
        count = group.pop("count")
        units += [Unit(**group)] * count
    return tuple(units)


_PLAIN = Scenario(name="", red=(_ANY := Unit(kind="fighter", speed=1.0, radar="X"),), blue=(_ANY,))
_RADAR = _of_class(Radar, range=_DISTANCE, points=_POINTS, sector=number(0.0, 180.0))
_FILE = table_of(
    name=(of_type(str, "a text"), ""),
    size=(_size, _PLAIN.size),
    red=(_side, REQUIRED),
    blue=(_side, REQUIRED),
    radars=(table_of(**{band: (_RADAR, radar) for band, radar in _PLAIN.radars.items()}), _PLAIN.radars),
    jamming=(_jamming, _PLAIN.jamming),
    receiver=(
        _of_class(Receiver, range=_DISTANCE, noise=number(0.0, 90.0), least_crossing=number(0.0, 90.0, above=True)),
        _PLAIN.receiver,
    ),
    missiles=(
        table_of(
            long=(_missile(_PLAIN.long_missile), _PLAIN.long_missile),
            medium=(_missile(_PLAIN.medium_missile), _PLAIN.medium_missile),
        ),
        {"long": _PLAIN.long_missile, "medium": _PLAIN.medium_missile},
    ),
    rules=(
        _of_class(
            Rules,
            max_steps=number(1, 1_000_000, whole=True),
            attack_effect_delay=_FLAG,
            hit_prob_enable=_FLAG,
            turn_rate=number(1, 360, whole=True),
            random_pos=_FLAG,
            strip=_strip,
        ),
        _PLAIN.rules,
    ),
    rewards=(
        _of_class(Rewards, **{each.name: _FLAG if each.type is bool else _SIGNED for each in fields(Rewards)}),
        _PLAIN.rewards,
    ),
)


def scenario_of_table(table: Mapping[str, Any], name: str) -> Scenario:
    """Return the scenario that the contents of a file describe; `name` is used if they give no name.

    Raises:
        ValueError: the contents are invalid; the message says what is wrong, where, and what is allowed.
    """
    checked = _FILE(table, "")
    missiles = checked.pop("missiles")
    checked["name"] = checked["name"] or name
    return Scenario(long_missile=missiles["long"], medium_missile=missiles["medium"], **checked)


def load_scenario(path: Path) -> Scenario:
    """Read a scenario file.

    Raises:
        ValueError: it cannot be read or is invalid; the message says what is wrong, where, and what is allowed.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"scenario file {path} can't be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"scenario file {path} is not TOML: {error}") from None
    try:
        return scenario_of_table(table, path.stem)
    except ValueError as error:
        raise ValueError(f"scenario file {path}: {error}") from None


@cache
def scenario_names() -> tuple[str, ...]:
    """Return the names of the scenarios of this package."""
    return tuple(sorted(path.stem for path in MAPS.glob("*.toml")))


def scenario_named(name: str) -> Scenario:
    """Return the scenario with this name, or the one in the file with this name: `.toml`, or `.map` as MaCA's.

    Raises:
        ValueError: no scenario has this name, and the message lists the known ones; or the file is invalid.
    """
    if name.endswith(".toml"):
        return load_scenario(Path(name))
    if name.endswith(SUFFIX):
        return load_map(Path(name))
    if name not in scenario_names():
        there_are = ", ".join(scenario_names())
        raise ValueError(
            f"scenario {name!r} is unknown; there are {there_are}, and files that end in .toml or {SUFFIX}"
        )
    return load_scenario(MAPS / f"{name}.toml")
