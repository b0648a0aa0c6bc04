"""The terrain of battles. `terrains.toml` holds SMAC's maps, in cells."""

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAP_SIZE = 32
"""Every map is a square of this many cells a side; its centre is the origin of the state's coordinates."""

FLOOR_HEIGHT = 191.0
VOID_HEIGHT = 135.0
PLATEAU_HEIGHT = 207.0
RAMP_HEIGHT = 199.0

CLEARANCE = 0.4
"""The distance that a straight way must keep from blocked cells, on both sides."""

Part = tuple[int, int, int, int]
"""A rectangle: south, north, west, east, in cells; north and east are exclusive."""


@dataclass(frozen=True, slots=True)
class Terrain:
    """A rectangle to walk on; all outside it is void. Bounds are in cells; north and east are exclusive."""

    south: int
    north: int
    west: int = 0
    east: int = MAP_SIZE
    parts: tuple[Part, ...] = ()
    """The walkable rectangles inside it; empty if all of it is walkable."""
    cliffs: tuple[Part, ...] = ()
    """Rectangles that only giant units can cross."""
    plateau: int = MAP_SIZE
    """The first row of the upper floor; the two rows before it are ramps."""
    winding: bool = False
    """Whether units need `ways` round corners. By default, they go straight on."""

    def walkable(self) -> NDArray[np.bool_]:
        """Return (32, 32), indexed [x, y]: whether a cell can be walked on."""
        cells = np.zeros((MAP_SIZE, MAP_SIZE), dtype=np.bool_)
        for south, north, west, east in self.parts or ((self.south, self.north, self.west, self.east),):
            cells[west:east, south:north] = True
        return cells

    def footing(self) -> NDArray[np.int8]:
        """Return (2, 32, 32), indexed [who, x, y]: where units on the ground (0) and giants (1) can walk.

        0 for a blocked cell, 1 for an open one that touches a blocked one, 2 for the others.
        """
        cells = np.stack([self.walkable()] * 2)
        for south, north, west, east in self.cliffs:
            cells[1, west:east, south:north] = True
        framed = np.pad(cells, ((0, 0), (1, 1), (1, 1)), constant_values=True)
        around = np.lib.stride_tricks.sliding_window_view(framed, (3, 3), axis=(1, 2)).all(axis=(3, 4))
        return cells.astype(np.int8) + (cells & around)

    def ways(self) -> NDArray[np.int16]:
        """Return (1024, 1024), indexed [from, to] by cells 32 x + y: the cell to head for, -1 for straight on.

        Empty, (0, 0), unless the terrain is `winding`.
        """
        return _ways(self) if self.winding else np.zeros((0, 0), dtype=np.int16)

    def height(self) -> NDArray[np.float64]:
        """Return (32, 32), indexed [x, y]: the height of a cell, 0 to 255."""
        floors = np.full((MAP_SIZE, MAP_SIZE), FLOOR_HEIGHT)
        floors[:, self.plateau - 2 : self.plateau] = RAMP_HEIGHT if self.plateau < MAP_SIZE else FLOOR_HEIGHT
        floors[:, self.plateau :] = PLATEAU_HEIGHT
        return np.where(self.walkable(), floors, VOID_HEIGHT)


@lru_cache(maxsize=8)
def _ways(terrain: Terrain) -> NDArray[np.int16]:
    walkable = terrain.walkable()
    cells = np.argwhere(walkable)
    centres = cells + 0.5
    count = len(cells)
    delta = centres[None] - centres[:, None]
    far = np.hypot(delta[..., 0], delta[..., 1])
    across = np.stack([-delta[..., 1], delta[..., 0]], axis=-1) / np.maximum(far, 1e-9)[..., None]

    clear = np.ones((count, count), dtype=np.bool_)
    for share in np.linspace(0.0, 1.0, 96):
        for side in (-CLEARANCE, 0.0, CLEARANCE):
            points = np.floor(centres[:, None] + share * delta + side * across).astype(np.int64)
            clear &= walkable[points[..., 0], points[..., 1]]

    # Shortest paths over the clear lines, by Floyd and Warshall; `stop` is the first stop of each path.
    length = np.where(clear, far, np.inf)
    stop = np.broadcast_to(np.arange(count), (count, count)).copy()
    for via in range(count):
        detour = length[:, via, None] + length[None, via]
        shorter = detour < length - 1e-9
        length[shorter] = detour[shorter]
        stop[shorter] = np.broadcast_to(stop[:, via, None], (count, count))[shorter]

    number = cells[:, 0] * MAP_SIZE + cells[:, 1]
    heading = np.where(clear, -1, number[stop])
    # The way to a cell that cannot be walked on, as to a giant on a cliff, is the way to the nearest walkable cell.
    everywhere = np.stack(np.meshgrid(np.arange(MAP_SIZE), np.arange(MAP_SIZE), indexing="ij"), axis=-1).reshape(-1, 2)
    nearest = ((everywhere[:, None] - cells[None]) ** 2).sum(axis=2).argmin(axis=1)
    ways = np.full((MAP_SIZE**2, MAP_SIZE**2), -1, dtype=np.int16)
    ways[number] = heading[:, nearest]
    return ways


def carved(parts: Iterable[Part], **others: Any) -> Terrain:
    """Return the terrain that these rectangles make up; `others` are further fields of `Terrain`."""
    south, north, west, east = zip(*parts, strict=True)
    return Terrain(min(south), max(north), min(west), max(east), tuple(parts), **others)


def _terrain_of(table: dict[str, Any]) -> Terrain:
    fields = table | {name: tuple(map(tuple, table[name])) for name in ("parts", "cliffs") if name in table}
    return carved(**fields) if "parts" in table else Terrain(**fields)


_TABLES = tomllib.loads(Path(__file__).with_name("terrains.toml").read_text(encoding="utf-8"))

TERRAINS = {name: _terrain_of(table) for name, table in _TABLES.items()}
"""Terrains by the names that scenario files use."""
