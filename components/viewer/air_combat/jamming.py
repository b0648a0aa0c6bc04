"""Which jammers jam which radars: the rules of the simulator, applied to a recording."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.viewer.air_combat.recording import AirRound


@dataclass(frozen=True, slots=True)
class Jammed:
    """A jammer that is on."""

    by: int
    barrage: bool
    """True if it jams its whole band, not one point."""
    radars: tuple[int, ...]
    """The units whose radar range it reduces."""


def share_left(unit: Any, kind: Any) -> float:
    """Return the remaining share of the range of a radar that is on: 1 if it is not jammed."""
    return float(unit["reach"] / kind["radar_range"])


def jammed_by(units: NDArray[Any], kinds: NDArray[Any], recorded: AirRound) -> Iterator[Jammed]:
    """Yield the jammers that are on, among the units (N,) of these kinds (N,)."""
    side = np.arange(len(units)) < recorded.n_agents
    for j in np.flatnonzero(units["alive"] & (units["jammer"] > 0)):
        barrage = bool(units["jammer"][j] > kinds["jammer_points"][j])
        near = np.hypot(units["x"] - units["x"][j], units["y"] - units["y"][j]) <= recorded.scenario.jamming.range
        hit = near & (side != side[j]) & (units["reach"] > 0.0) & (kinds["radar_band"] == kinds["jammer_band"][j])
        if not barrage:
            hit &= units["radar"] == units["jammer"][j]
        yield Jammed(int(j), barrage, tuple(np.flatnonzero(hit).tolist()))
