"""MaCA's own maps: JSON files that name the size of the map and the units of both sides.

    {"map_name": "...", "size_x": 1000, "size_y": 1000,
     "side1_detector_num": 0, "side1_fighter_num": 1, "side1_detector_list": [],
     "side1_fighter_list": [{"speed": 2, "r_band": 2, "l_missile_num": 2, "s_missile_num": 4, "j_band": 2}],
     "side2_detector_num": 1, "side2_fighter_num": 0, "side2_fighter_list": [],
     "side2_detector_list": [{"speed": 1, "r_band": 0}]}

A band is 0 for L, 1 for S, 2 for X. Everything else has the default of `scenarios`.
"""

import json
from pathlib import Path
from typing import Any

from components.envs.air_combat.scenarios import BANDS, KINDS, MOST_UNITS, Scenario, Unit
from components.envs.skirmish.toml_checks import REQUIRED, Check, list_of, number, of_type, table_of

SUFFIX = ".map"
_BAND = number(0, len(BANDS) - 1, whole=True)
_MISSILES = number(0, 100, whole=True)
_SPEED = number(0.0, 1e6)
_SIZE = number(1.0, 1e6)
_UNITS = {
    "detector": table_of(speed=(_SPEED, REQUIRED), r_band=(_BAND, REQUIRED)),
    "fighter": table_of(
        speed=(_SPEED, REQUIRED),
        r_band=(_BAND, REQUIRED),
        j_band=(_BAND, REQUIRED),
        l_missile_num=(_MISSILES, REQUIRED),
        s_missile_num=(_MISSILES, REQUIRED),
    ),
}
_LISTS: dict[str, tuple[Check, Any]] = {
    f"side{side}_{kind}_list": (list_of(_UNITS[kind]), []) for side in (1, 2) for kind in KINDS
}
_COUNTS = {f"side{side}_{kind}_num": (number(0, MOST_UNITS, whole=True), REQUIRED) for side in (1, 2) for kind in KINDS}
_FILE = table_of(
    map_name=(of_type(str, "a text"), ""), size_x=(_SIZE, REQUIRED), size_y=(_SIZE, REQUIRED), **_COUNTS, **_LISTS
)


def _unit(kind: Any, described: dict[str, Any]) -> Unit:
    jams = kind == "fighter"
    return Unit(
        kind=kind,
        speed=described["speed"],
        radar=BANDS[described["r_band"]],
        jammer=BANDS[described["j_band"]] if jams else None,
        long_missiles=described["l_missile_num"] if jams else 0,
        medium_missiles=described["s_missile_num"] if jams else 0,
    )


def scenario_of_map(contents: Any, name: str) -> Scenario:
    """Return the scenario that the contents of a map describe; `name` is used if they give no name.

    Raises:
        ValueError: the contents are invalid; the message says what is wrong, where, and what is allowed.
    """
    checked = _FILE(contents, "")
    sides: list[tuple[Unit, ...]] = []
    for side in (1, 2):
        units: list[Unit] = []
        for kind in KINDS:
            described, count = checked[f"side{side}_{kind}_list"], checked[f"side{side}_{kind}_num"]
            if len(described) != count:
                where = f"side{side}_{kind}_list"
                raise ValueError(f"{where} has {len(described)} entries, must have {count} as side{side}_{kind}_num")
            units += [_unit(kind, each) for each in described]
        sides.append(tuple(units))
    size = (checked["size_x"], checked["size_y"])
    return Scenario(name=checked["map_name"] or name, red=sides[0], blue=sides[1], size=size)


def load_map(path: Path) -> Scenario:
    """Read a map of MaCA.

    Raises:
        ValueError: it cannot be read or is invalid; the message says what is wrong, where, and what is allowed.
    """
    try:
        contents = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"map {path} can't be read: {error.strerror}") from None
    except ValueError as error:  # of JSON or of UTF-8
        raise ValueError(f"map {path} is not JSON: {error}") from None
    try:
        return scenario_of_map(contents, path.stem)
    except ValueError as error:
        raise ValueError(f"map {path}: {error}") from None
