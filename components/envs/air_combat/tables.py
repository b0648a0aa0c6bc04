"""The constants of a battle, as the records that the kernel reads."""

from dataclasses import asdict
from math import cos, radians, sin, tan
from typing import Any

import numpy as np

from components.envs.air_combat.records import KIND, RULES
from components.envs.air_combat.scenarios import BANDS, KINDS, Scenario, Unit


def _starts(side: tuple[Unit, ...], scenario: Scenario, *, turned: bool) -> list[tuple[float, float]]:
    """Return where the units of a side start: one column of detectors and one of fighters, evenly spaced.

    A turned side starts on the right, with the last of its units at the top, so that both sides have the same view.
    """
    width, height = scenario.size
    counts = {kind: sum(unit.kind == kind for unit in side) for kind in KINDS}
    placed = dict.fromkeys(KINDS, 0)
    places = []
    for unit in side:
        x = scenario.rules.strip[unit.kind == "fighter"]
        y = (placed[unit.kind] + 0.5) * height / counts[unit.kind]
        placed[unit.kind] += 1
        places.append((width - x, height - y) if turned else (x, y))
    return places


def kinds_table(scenario: Scenario) -> Any:
    """Return the properties of each unit: (N,) of `records.KIND`, side 1 first."""
    table = np.zeros(len(scenario.units), KIND)
    starts = _starts(scenario.red, scenario, turned=False) + _starts(scenario.blue, scenario, turned=True)
    for row, unit, start in zip(table, scenario.units, starts, strict=True):
        radar = scenario.radars[unit.radar]
        row["fighter"] = unit.kind == "fighter"
        row["speed"] = unit.speed
        row["source"] = 2 if unit.kind == "fighter" else BANDS.index(unit.radar)
        row["radar_band"] = BANDS.index(unit.radar)
        row["radar_range"], row["radar_points"] = radar.range, radar.points
        # The cosine is rounded, so that a target exactly at the edge of a sector of 60 degrees is inside.
        row["sector_cos"] = -2.0 if radar.sector == 180.0 else round(cos(radians(radar.sector)), 12)
        row["jammer_band"] = -1 if unit.jammer is None else BANDS.index(unit.jammer)
        row["jammer_points"] = 0 if unit.jammer is None else scenario.jamming.points[unit.jammer]
        row["long_missiles"], row["medium_missiles"] = unit.long_missiles, unit.medium_missiles
        row["start_x"], row["start_y"] = start
    return table


def rules_table(scenario: Scenario, **options: float) -> Any:
    """Return the numbers of a scenario and the given options of the environment: (1,) of `records.RULES`."""
    table = np.zeros(1, RULES)
    row = table[0]
    row["red"], row["blue"] = len(scenario.red), len(scenario.blue)
    row["size_x"], row["size_y"] = scenario.size
    row["diagonal"] = scenario.diagonal
    row["jamming_range"], row["aimed"] = scenario.jamming.range, scenario.jamming.aimed
    row["barrage"] = scenario.jamming.barrage
    row["receiver_range"] = scenario.receiver.range
    row["noise"] = tan(radians(scenario.receiver.noise) / 2.0)
    row["least_crossing"] = sin(radians(scenario.receiver.least_crossing)) ** 2
    for kind, missile in (("long", scenario.long_missile), ("medium", scenario.medium_missile)):
        for name, value in asdict(missile).items():
            row[f"{kind}_{name}"] = value
    rules = asdict(scenario.rules)
    row["strip_near"], row["strip_far"] = rules.pop("strip")
    for name, value in (rules | asdict(scenario.rewards) | options).items():
        row[name] = value
    return table
